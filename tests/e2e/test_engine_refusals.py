"""Bad engines and requests on the command line of those who run, verify or look into them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmc.compiler.verify.certificate import CERTIFICATE
from llmc.runtime.artifact.hashing import digest
from llmc.runtime.artifact.strict_json import render_json
from tests.e2e.commands import Commands, Ended
from tests.e2e.engines import Engines
from tests.e2e.refusals import refused


@pytest.fixture
def engine(engines: Engines, speaking: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(engines.engine(speaking), tmp_path / "engine"))


def test_the_engine_runs_before_it_is_damaged(engine: Path, llmc: Commands) -> None:
    ended = llmc.run("run", engine, "-p", "hello", "--max-tokens", "4", "--quiet")
    assert (ended.code, ended.stderr) == (0, "")


def test_a_flipped_bit_anywhere_in_an_engine(engine: Path, llmc: Commands) -> None:
    rng = random.Random(11)
    files = sorted(path for path in engine.rglob("*") if path.is_file() and path.name != CERTIFICATE)
    assert len(files) > 12
    for path in files:
        sound = path.read_bytes()
        for _ in range(3):
            bytes_ = bytearray(sound)
            bytes_[rng.randrange(len(bytes_))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes_)
            refused(llmc.run("run", engine, "-p", "hello", "--max-tokens", "4"), str(engine))
        path.write_bytes(sound)
    assert llmc.run("run", engine, "-p", "hello", "--max-tokens", "4").code == 0


def reseal(engine: Path, **changes: Any) -> None:
    """Change the manifest as another producer would have written it, with its checksum right."""
    plain = {**json.loads((engine / "manifest.json").read_text()), **changes}
    plain.pop("checksum")
    (engine / "manifest.json").write_bytes(render_json({**plain, "checksum": digest(render_json(plain))}))


def test_engines_for_others(engine: Path, engines: Engines, speaking: Path, llmc: Commands) -> None:
    manifest = json.loads((engine / "manifest.json").read_text())
    (target,) = manifest["targets"]
    for changes, expected in (
        ({"format": manifest["format"] + 1}, "a newer llmc"),
        ({"format": manifest["format"] - 2}, "an older llmc"),
        ({"abi": 99}, "ABI 99"),
        ({"targets": [{**target, "features": [*target["features"], "avx1024"]}]}, "avx1024"),
        ({"targets": [{**target, "arch": "riscv64"}]}, "riscv64"),
    ):
        reseal(engine, **changes)
        for command in (("run", engine, "-p", "x"), ("verify", engine, speaking)):
            refused(llmc.run(*command), expected)
        shutil.copy(engines.engine(speaking) / "manifest.json", engine)


def test_requests_that_an_engine_refuses(engine: Path, llmc: Commands) -> None:
    for options, expected in (
        (["-p", "x" * 128], "128"),
        (["-p", ""], "empty"),
        (["-p", "x", "--temperature", "-1"], "temperature"),
        (["-p", "x", "--max-tokens", "0"], "max_tokens"),
        (["-p", "x", "--seed", "-1"], "seed"),
        (["-p", "x", "--threads", "0"], "threads"),
    ):
        refused(llmc.run("run", engine, "--raw", *options), expected)


def test_what_is_no_engine(llmc: Commands, speaking: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, expected in (
        (tmp_path / "nowhere", "no such folder"),
        (speaking, "manifest.json"),
        (tmp_path / "file", "file"),
    ):
        for command in (("run", path, "-p", "x"), ("inspect", path), ("verify", path, speaking)):
            refused(llmc.run(*command), expected)


def test_damaged_reports(engine: Path, llmc: Commands) -> None:
    """`inspect` reads two files; each is checked as `run` would."""
    report = engine / "report.json"
    for damage, expected in ((b"{", "damaged"), (b"\xff", "damaged"), (None, "missing")):
        report.unlink()
        if damage is not None:
            report.write_bytes(damage)
        refused(llmc.run("inspect", engine), "report.json", expected)


def test_inspect_names_files_that_nobody_reads(engine: Path, llmc: Commands) -> None:
    (engine / ".DS_Store").write_bytes(b"x")
    (engine / "README.md").write_text("a hub's")
    ended = llmc.run("inspect", engine)
    assert ended.code == 0 and "nobody reads .DS_Store, README.md" in " ".join(ended.stdout.split()), ended.stdout


def test_names_that_look_like_markup(engine: Path, llmc: Commands) -> None:
    place = engine.rename(engine.parent / "x[")
    inside = place / "b]"
    inside.mkdir()
    for path in list(place.iterdir()):
        if path != inside:
            path.rename(inside / path.name)
    ended = llmc.run("inspect", inside)
    assert ended.code == 0 and str(inside) in ended.stdout.splitlines(), ended.stderr


def test_what_verify_cannot_compare(
    engine: Path, engines: Engines, speaking: Path, llmc: Commands, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "bytes").write_bytes(b"a\xff\n")
    (tmp_path / "long").write_text("x" * 129)
    (tmp_path / "one").write_text("a")
    for texts, expected in (
        ("empty", "holds no text"),
        ("bytes", "not UTF-8"),
        ("long", "129 tokens"),
        ("nothing", "No such file"),
        (".", "directory"),
    ):
        refused(llmc.run("verify", engine, speaking, "--texts", tmp_path / texts), expected)
    _, other = engines.model("llama")
    refused(llmc.run("verify", engine, other, "--texts", tmp_path / "one"), "built from another model")


def test_verify_cuts_its_texts_to_a_short_envelope(engine: Path, speaking: Path, llmc: Commands) -> None:
    ended = llmc.run("verify", engine, speaking, "--json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert max(text["num_tokens"] for text in found["texts"]) == 128
    assert found["verdict"] == "PASS" and found["text_path"]["disagreements"] == []


@pytest.mark.parametrize("command", [("run", "-p", "x", "--max-tokens", "3"), ("inspect",)])
def test_output_that_cannot_be_written(engine: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    args = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", name, str(engine), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True)
    refused(Ended(done.returncode, "", done.stderr), "No space left on device")


def test_missing_streams(engine: Path) -> None:
    """Started by something that gave it no stdin or stdout: the chat ends at once, the answer goes nowhere."""
    start = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    llmc = ["-c", "from llmc.compiler.commands.cli import main; main()", "run", str(engine), "--max-tokens", "2"]
    for closed, options in (("0", []), ("1", ["-p", "x", "--quiet"]), ("2", ["-p", "x"])):
        args = [sys.executable, "-c", start, closed, *llmc, *options]
        done = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), closed
