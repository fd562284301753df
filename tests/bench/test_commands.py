"""Every bench's command runs to its end, in its smallest form: what it prints is not looked at, but that it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.test_scripts import ROOT, SCRIPTS

COMMANDS = {  # ENGINE, MODEL and OUT are put in
    "build.py": "MODEL OUT/built.engine f32",
    "cpu/kv_error.py": "--model MODEL --dtype f32 --contexts 90 --batch 2 --rounds 1 --steps 4",
    "cpu/kernel_speed.py": "--target x86-64-v3 --threads 1 --rounds 2 --formats f32 --rows 1 --shapes qkv",
    "cpu/limits.py": "--threads 1 --mb 1 --json OUT/limits.json",
    "cpu/sampling_speed.py": "--target x86-64-v3 --rows 1",
    "cpu/step_profile.py": "ENGINE --batch 2 --length 8 --steps 2 --threads 1",
    "serving/long_prompt.py": "ENGINE --prompt 64 --others 1 --before 8 --slowdowns 2 --threads 1",
    "serving/overhead.py": "ENGINE --requests 2 --tokens 4 --rounds 1 --threads 1",
    "serving/prefix.py": "ENGINE --prefix 512 --own 4 --rounds 1 --threads 1",
    "serving/ready.py": "ENGINE --rounds 1 --threads 1",
    "serving/server_cost.py": "",
    "serving/step_overhead.py": "--steps 700",
    "serving/way_out.py": "ENGINE --requests 1 --tokens 4 --rounds 1 --threads 1",
}
ELSEWHERE = {
    "cpu/race.py": "needs its peers; test_race.py",
    "serving/race.py": "needs its peers; test_serving_race.py",
    "dithered.py": "test_dithered.py",
    "gpu/part.py": "test_gpu.py",
    "gpu/prepare.py": "test_gpu.py",
    "gpu/run.py": "test_gpu.py",
    "gpu/budget.py": "not run: it writes the table of bench/gpu/README.md",
    "quality.py": "not run: it needs a model whose answers bits change; tests/quality holds its parts",
    "roofline.py": "only its --help, in test_scripts.py: it writes docs/roofline.md, in minutes",
}


def test_every_command_is_run_or_said_not_to_be() -> None:
    """Those of bench/peers/ run in the peers' own environments."""
    names = {name for path in SCRIPTS if not (name := str(path.relative_to(ROOT / "bench"))).startswith("peers/")}
    assert names == COMMANDS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("script", COMMANDS)
def test_a_command_runs(script: str, speaking: Path, patient_engine: Path, tmp_path: Path) -> None:
    meant = {"ENGINE": str(patient_engine), "MODEL": str(speaking), "OUT": str(tmp_path)}
    arguments = ["/".join(meant.get(part, part) for part in word.split("/")) for word in COMMANDS[script].split()]
    command = [sys.executable, str(ROOT / "bench" / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout, done.stderr
