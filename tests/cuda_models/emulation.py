"""Engines for GPUs, and programs of this folder that run them on the emulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.manifest import CUDA

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Emulation:
    """How to run: `checked` watches for races and bad accesses; schedule: forward, reverse or random:SEED."""

    checked: bool = False
    schedule: str = "forward"

    def run(self, program: str, *arguments: str | Path, engine: Path, target: str = "h100") -> str:
        """Standard output of a program; AssertionError with its errors where it fails."""
        arch = next(t.arch for t in read_manifest(engine).targets if t.kind == CUDA and t.name == target)
        emulator = [sys.executable, "-m", "llmc.emulator", "--device", GPUS[target].device, "--arch", arch]
        emulator += ["--check"] if self.checked else []
        command = [*emulator, engine, "--", sys.executable, "-m", f"tests.cuda_models.{program}", *arguments]
        env = os.environ | {"LLMC_EMU_SCHEDULE": self.schedule}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, timeout=1800)
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    def logits(self, check: str, engine: Path, out: Path, *arguments: Any, target: str = "h100") -> NDArray[np.float32]:
        """What a check of emulated.py saved: f32[positions, vocab]."""
        file = out / f"{check}-{target}.npz"
        self.run("emulated", check, engine, file, *map(str, arguments), engine=engine, target=target)
        logits: NDArray[np.float32] = np.load(file)["logits"]
        return logits
