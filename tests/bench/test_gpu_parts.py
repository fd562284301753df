"""Parts of a card's report as processes: whatever one dies of, what it measured is kept and the rest goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import parts, prepare
from bench.gpu.prepare import find_prepared, hollow_path
from bench.gpu.run import SCRATCH, scratch_parent

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "bench" / "gpu"
KEYS = ["a", "b", "c", "d"]
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from bench.gpu.records import Records

records = Records.of_parent()
if records.part == "broken":
    sys.exit("no driver")
time.sleep(3 if records.part == "late" else 0)
print("words on standard output are nobody's record")
for key in records.each({KEYS}):
    match records.options.get(key):
        case "raise":
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS in " + key)
        case "kill":
            os.kill(os.getpid(), 9)
        case "hang":
            time.sleep(600)
        case "slow":
            time.sleep(4)
    records.end(value=key * 3, seed=records.options["seed"])
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parts run PROGRAM, and hung ones are given up soon."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(parts, "PROGRAM", program)
    monkeypatch.setattr(parts, "GRACE", 4.0)


def run(
    does: str = "items", seconds: float = 60.0, patience: float = 60.0, deaths: int = 3, **options: str
) -> parts.Outcome:
    told: dict[str, Any] = {}
    part = parts.Part("part", does, options | {"seed": 7}, deaths, patience)
    outcome = parts.Run(part, time.monotonic() + seconds, {"PATH": "/usr/bin"}, told.__setitem__).run()
    assert told == outcome.items
    assert json.loads(json.dumps(outcome.plain())) == outcome.plain()
    return outcome


@pytest.mark.usefixtures("program")
def test_items_come_as_they_are_done() -> None:
    outcome = run()
    assert outcome.items == {key: {"value": key * 3, "seed": 7} for key in KEYS}
    assert outcome.complete and not outcome.errors and not outcome.left_out


@pytest.mark.parametrize("how, said", [("raise", "CUDA_ERROR_ILLEGAL_ADDRESS in b"), ("kill", "exit status -9")])
@pytest.mark.usefixtures("program")
def test_a_death_costs_its_item(how: str, said: str) -> None:
    outcome = run(b=how)
    assert sorted(outcome.items) == ["a", "c", "d"] and list(outcome.errors) == ["b"]
    assert said in outcome.errors["b"]
    assert outcome.complete  # nothing was left out: b is wrong


@pytest.mark.usefixtures("program")
def test_many_deaths_end_it() -> None:
    outcome = run(deaths=2, a="raise", b="raise", c="raise")
    assert not outcome.items and list(outcome.errors) == ["a", "b"] and outcome.left_out == ["c", "d"]
    assert not outcome.complete


@pytest.mark.usefixtures("program")
def test_what_hangs_is_ended() -> None:
    outcome = run(patience=3.0, c="hang")
    assert sorted(outcome.items) == ["a", "b", "d"] and "nothing heard for 3 s" in outcome.errors["c"]


@pytest.mark.usefixtures("program")
def test_a_slow_start_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that must wake up first takes seconds, an item of a part does not."""
    outcome = run("late", patience=1.0)
    assert sorted(outcome.items) == KEYS and outcome.complete, outcome
    monkeypatch.setattr(parts, "START", 1.0)
    assert "nothing heard for 1 s" in run("late", patience=1.0).error


@pytest.mark.usefixtures("program")
def test_time_runs_out_between_items_and_in_one() -> None:
    """What is under way has GRACE to end; what is not begun is left out."""
    outcome = run(seconds=3.0, b="slow")
    assert list(outcome.items) == ["a", "b"] and outcome.left_out == ["c", "d"] and not outcome.complete
    outcome = run(seconds=3.0, b="hang")
    assert list(outcome.items) == ["a"] and outcome.left_out == ["c", "d"]
    assert "stopped at the end of its time" in outcome.errors["b"]
    outcome = run(seconds=0.0)
    assert outcome.left_out == KEYS and not outcome.complete


@pytest.mark.usefixtures("program")
def test_what_cannot_begin_says_why() -> None:
    outcome = run("broken")
    assert "no driver" in outcome.error and not outcome.complete and not outcome.items


def test_a_report_without_a_card_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(GPU / "run.py"), "--out", str(tmp_path), "--minutes", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no GPU that can be used" in done.stdout and "INCOMPLETE" in done.stdout
    report = json.loads((tmp_path / "no-card.json").read_text())
    assert not report["complete"] and "libcuda" in report["parts"]["limits"]["errors"]["card"]


def test_an_engine_that_cannot_be_made_is_an_item_that_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(prepare, "prepare_engine", refuse)
    item = prepare.engine_for("M", tmp_path, "h200", tmp_path / "scratch", False)
    assert item == {"error": "no M for h200 is prepared; here: ModuleNotFoundError: No module named 'transformers'"}


@pytest.mark.parametrize("layer", ["ir", "codegen", "templates/cuda"])
def test_an_engine_of_other_sources_is_known(tmp_path: Path, layer: str) -> None:
    (tmp_path / layer).mkdir(parents=True)
    source = tmp_path / layer / "model.py"
    source.write_text("a = 1\n")
    before = prepare.code_digest(tmp_path)
    (tmp_path / layer / "notes.txt").touch()
    assert prepare.code_digest(tmp_path) == before
    source.write_text("a = 2\n")
    assert prepare.code_digest(tmp_path) != before
    engine = tmp_path / "engine"
    assert not prepare.is_of_this_checkout(engine)
    (tmp_path / "engine.sources").write_text(before)
    assert not prepare.is_of_this_checkout(engine)
    (tmp_path / "engine.sources").write_text(prepare.code_digest())
    assert prepare.is_of_this_checkout(engine)


def test_an_engine_for_a_like_gpu_will_do(tmp_path: Path) -> None:
    def prepared(target: str) -> Path:
        folder = hollow_path(tmp_path, target, "M")
        folder.mkdir(parents=True)
        for name in ("hollow.json", "buffers.safetensors"):
            (folder / name).touch()
        return folder

    assert find_prepared(tmp_path, "h200", "M") is None
    prepared("a100")
    assert find_prepared(tmp_path, "h200", "M") is None
    h100 = prepared("h100")
    assert find_prepared(tmp_path, "h200", "M") == h100
    h200 = prepared("h200")
    assert find_prepared(tmp_path, "h200", "M") == h200 and find_prepared(tmp_path, "h100", "M") == h100


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("run.py", ["--only", "primitives,kernel"], "--only kernel: no such part; those that are: limits, "),
        ("run.py", ["--models", "Qwen3-0.6B,Qwen9"], "--models Qwen9: neither prepared in "),
        ("run.py", ["--models", "../configs/Qwen3-0.6B"], "--models ../configs/Qwen3-0.6B: expected the name of a"),
        ("run.py", ["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        ("run.py", ["--minutes", "-1"], "--minutes -1.0: expected a number above 0"),
        ("run.py", ["--seed", "-1"], "--seed -1: expected 0 or more"),
        ("run.py", ["--scratch", "{tmp}/file/x"], "--scratch {tmp}/file/x: cannot be written: Not a directory"),
        ("run.py", ["--prepared", "{tmp}/nowhere"], "nowhere: no such folder; prepare.py --out makes it"),
        ("run.py", ["--out", "{tmp}/file/results"], "results: cannot be written: Not a directory"),
        ("prepare.py", ["--models", "Qwen9"], "--models Qwen9: neither prepared in "),
        ("prepare.py", ["--out", "{tmp}/file"], "file: cannot be written: File exists"),
    ],
)
def test_what_nobody_could_mean_is_refused_at_once(
    tmp_path: Path, script: str, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(GPU / script), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *(a.format(tmp=tmp_path) for a in arguments)], capture_output=True, text=True)
    said = words.format(tmp=tmp_path)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr


def test_engines_of_a_report_that_was_killed_do_not_stay_in_memory(tmp_path: Path) -> None:
    """16 GB of them; those of a report that is under way stay."""
    program = (
        "import sys, time; from pathlib import Path; from llmc.runtime.artifact.atomic_folder import hidden_sibling\n"
        f"with hidden_sibling(Path(sys.argv[1]) / {SCRATCH!r}) as folder:\n"
        "    (folder / 'engine').mkdir(); print('there', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        assert scratch_parent(1, tmp_path) == tmp_path and len(list(tmp_path.glob(".*/engine"))) == 1
    finally:
        process.kill()
        process.wait()
    assert len(list(tmp_path.iterdir())) == 1
    assert scratch_parent(1, tmp_path) == tmp_path and not list(tmp_path.iterdir())
    assert scratch_parent(1 << 60, tmp_path) != tmp_path


def test_a_damaged_prepared_engine_is_an_item_that_says_why(tmp_path: Path) -> None:
    folder = prepare.hollow_path(tmp_path, "h200", "M")
    folder.mkdir(parents=True)
    (folder / "hollow.json").write_text('{"half": ')
    (folder / "buffers.safetensors").touch()
    item = prepare.engine_for("M", tmp_path, "h200", tmp_path / "scratch", False)
    assert list(item) == ["error"] and "hollow.json" in item["error"] and not (tmp_path / "scratch").exists()
