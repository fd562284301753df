"""`llmc batch` as a process over a tiny engine: killed at random moments, run again, compared byte for byte."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.serve.batch.lines import completion, mixed, write

COMMAND = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", "batch"]
HANG = 60.0  # seconds: what takes longer than this is stuck
KILLS = 5


def command(engine: Path, source: Path, output: Path) -> list[str]:
    return [*COMMAND, f"toy={engine}", str(source), str(output), "--threads", "1"]


def run(engine: Path, source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(engine, source, output), capture_output=True, text=True, timeout=HANG, check=False)


def kill_at(engine: Path, source: Path, output: Path, size: int) -> bool:
    """Kill it when its journal has that many bytes. False: it had ended by then."""
    journal = output.with_name(f"{output.name}.journal")
    process = subprocess.Popen(command(engine, source, output), stderr=subprocess.DEVNULL)
    until = time.monotonic() + HANG
    while process.poll() is None and not (journal.exists() and journal.stat().st_size >= size):
        assert time.monotonic() < until
        time.sleep(0.0005)
    process.kill()
    return process.wait() == -signal.SIGKILL


def test_five_kills_change_no_byte(shared_engine: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *mixed(300))
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    done = run(shared_engine, source, whole)
    assert done.returncode == 0 and "303 lines, 3 of them errors" in done.stderr, done.stderr
    rng = random.Random(10)
    for at in sorted(rng.uniform(0, 0.9) for _ in range(KILLS)):
        assert kill_at(shared_engine, source, broken, int(at * whole.stat().st_size))
        assert not broken.exists()
    done = run(shared_engine, source, broken)
    assert done.returncode == 0 and "going on: " in done.stderr, done.stderr
    assert broken.read_bytes() == whole.read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["broken.jsonl", "in.jsonl", "whole.jsonl"]

    left = tmp_path / "whole.jsonl.journal"  # as by a kill between the rename and its removal
    left.write_text("{}\n")
    again = run(shared_engine, source, whole)
    assert again.returncode == 0 and "is finished already: 303 lines" in again.stderr and not left.exists()
    other = write(tmp_path / "other.jsonl", *mixed(300)[1:], completion("new"))
    refused = run(shared_engine, other, whole)
    assert refused.returncode == 2 and "no answer of this engine to line 1 of" in refused.stderr
    assert whole.read_bytes() == broken.read_bytes()
