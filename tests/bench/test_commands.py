"""Every bench's command runs to its end, in its smallest form: what it prints is not looked at, but that it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.test_scripts import ROOT, SCRIPTS

ENGINE, MODEL, OUT = "ENGINE", "MODEL", "OUT"  # what the arguments below mean by these
KERNELS = ["--target", "x86-64-v3"]  # a target whose kernels any machine of the tests runs
COMMANDS = {
    "build.py": [MODEL, f"{OUT}/built.engine", "f32"],
    "cpu/kernel_speed.py": [
        *KERNELS,
        "--threads",
        "1",
        "--rounds",
        "1",
        "--formats",
        "f32",
        "--rows",
        "1",
        "--shapes",
        "k_proj",
    ],
    "cpu/limits.py": ["--threads", "1", "--mb", "1", "--json", f"{OUT}/limits.json"],
    "cpu/sampling_speed.py": [*KERNELS, "--rows", "1"],
    "cpu/step_profile.py": [ENGINE, "--batch", "2", "--length", "8", "--steps", "2", "--threads", "1"],
    "serving/long_prompt.py": [
        ENGINE,
        "--prompt",
        "64",
        "--others",
        "1",
        "--before",
        "8",
        "--slowdowns",
        "2",
        "--threads",
        "1",
    ],
    "serving/overhead.py": [ENGINE, "--requests", "2", "--tokens", "4", "--rounds", "1", "--threads", "1"],
    "serving/prefix.py": [ENGINE, "--prefix", "64", "--own", "4", "--rounds", "1", "--threads", "1"],
    "serving/ready.py": [ENGINE, "--rounds", "1", "--threads", "1"],
    "serving/server_cost.py": [],
    "serving/step_overhead.py": ["--steps", "20"],
}
ELSEWHERE = {
    "cpu/race.py": "needs its peers; test_race.py",
    "serving/race.py": "needs its peers; test_serving_race.py",
    "gpu/part.py": "test_gpu.py",
    "gpu/prepare.py": "test_gpu.py",
    "gpu/run.py": "test_gpu.py",
    "gpu/budget.py": "not run: it writes the table of bench/gpu/README.md",
    "roofline.py": "only its --help, in test_scripts.py: it writes docs/roofline.md, in minutes",
}


def test_every_command_is_run_or_said_not_to_be() -> None:
    names = {str(path.relative_to(ROOT / "bench")) for path in SCRIPTS}
    assert names == COMMANDS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("script", COMMANDS)
def test_a_command_runs(script: str, speaking: Path, speaking_engine: Path, tmp_path: Path) -> None:
    meant = {ENGINE: str(speaking_engine), MODEL: str(speaking)}
    arguments = [meant.get(part, part.replace(OUT, str(tmp_path))) for part in COMMANDS[script]]
    command = [sys.executable, str(ROOT / "bench" / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout, done.stderr
