"""kill -9 at random moments of a build: the output is what it was, or whole and new; the next build clears all away."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from e2e.commands import Commands, Running
from e2e.engines import Engines

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest

FAST = ("--dtype", "f32", "--target", "generic")  # the least to compile


def staged(out: Path) -> set[Path]:
    return set(out.parent.glob(".*.llmc-build-*"))


def wait_for_library(build: Running, out: Path, dead: set[Path]) -> None:
    """Until kernels are compiled: what is left, weights and checksums and renames, is over in milliseconds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any((path / "kernels/generic/model.so").exists() for path in staged(out) - dead):
            return
        time.sleep(0.001)
    raise AssertionError(f"no library after two minutes: {build.wait()}")


def kill_builds(count: int, engines: Engines, llmc: Commands, tmp_path: Path) -> None:
    """Of four moments, one is anywhere in a build, three are after its compilation; half are over an engine."""
    sources = [engines.model("llama", num_hidden_layers=n)[1] for n in (1, 2)]
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    out.mkdir()
    scratch.mkdir()
    out /= "engine"
    layers: set[int] = set()
    rng = random.Random(count)
    begin = time.monotonic()
    build = llmc.start("build", sources[0], "-o", out, *FAST, TMPDIR=str(scratch))
    wait_for_library(build, out, set())
    compiled = time.monotonic() - begin
    assert build.wait().code == 0
    took = time.monotonic() - begin
    outcomes = {"old": 0, "new": 0, "none": 0}
    for number in range(count):
        if number == count // 2:
            for path in sorted(out.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            out.rmdir()
        before = read_manifest(out) if out.exists() else None
        dead = staged(out)
        other = 1 if before is not None and len(before.targets[0].kv.slots) == 1 else 0
        build = llmc.start("build", sources[other], "-o", out, *FAST, TMPDIR=str(scratch))
        if number % 4 == 0:
            time.sleep(rng.uniform(0, took))
        else:
            wait_for_library(build, out, dead)
            time.sleep(rng.uniform(0, 1.5 * (took - compiled)))  # some get to their end
        os.kill(build.pid, signal.SIGKILL)
        assert build.wait().code in (-signal.SIGKILL, 0)
        if not out.exists():
            assert before is None
            outcomes["none"] += 1
            continue
        with Engine.load(out, threads=1) as engine:  # everything is checked, bit by bit
            assert engine.generate([[1, 2, 3]], max_tokens=2)[0].error is None
            outcomes["old" if engine.manifest == before else "new"] += 1
            layers.add(len(engine.artifact.target.kv.slots))
    print(f"{count} builds killed within {took:.1f} s each: {outcomes}")
    assert llmc.run("build", sources[1], "-o", out, *FAST, TMPDIR=str(scratch)).code == 0
    assert len(read_manifest(out).targets[0].kv.slots) == 2
    assert [path.name for path in out.parent.iterdir()] == ["engine"], "the next build clears away what dead ones left"
    assert list(scratch.iterdir()) == []
    assert layers <= {1, 2}


def test_builds_killed_at_20_moments(engines: Engines, llmc: Commands, tmp_path: Path) -> None:
    kill_builds(20, engines, llmc, tmp_path)


@pytest.mark.soak
def test_builds_killed_at_200_moments(engines: Engines, llmc: Commands, tmp_path: Path) -> None:
    kill_builds(200, engines, llmc, tmp_path)
