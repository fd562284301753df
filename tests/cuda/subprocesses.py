"""Runs a script of this folder in a process whose libcuda.so.1 is the emulator's: unmodified cuda-python
on top."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llmc.codegen.cuda.kernel import KernelParams, render, symbol_of
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, compile_cubin
from llmc.emulator import pairs
from llmc.emulator.build import build_driver, build_twin
from llmc.emulator.devices import H100, Device, environment

HERE = Path(__file__).parent


def build_source(source: str, name: str, folder: Path, arch: str, checked: bool) -> Path:
    """Compiles one source both ways; returns the cubin's path. The twin's is found by the driver."""
    compiled = compile_cubin(source, arch, name=f"{name}.cu")
    twin = build_twin(source, [TEMPLATES], checked=checked, name=f"{name}.cu")
    pairs.install(compiled.cubin, twin, folder / "twins", checked=checked)
    path = folder / f"{name}.cubin"
    path.write_bytes(compiled.cubin)
    return path


def build_pairs(kernels: Sequence[KernelParams], folder: Path, *, arch: str = "sm_90a", checked: bool = False) -> None:
    for p in kernels:
        build_source(render(p), symbol_of(p), folder, arch, checked)


def run(
    script: str,
    *args: str,
    folder: Path,
    checked: bool = False,
    schedule: str = "forward",
    devices: Sequence[Device] = (H100,),
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "LD_LIBRARY_PATH": str(build_driver().folder),
        "LLMC_EMU_TWINS": str(folder / "twins"),
        "LLMC_EMU_CHECK": "race" if checked else "",
        "LLMC_EMU_SCHEDULE": schedule,
        "LLMC_EMU_DEVICES": environment(list(devices)),
    }
    return subprocess.run(
        [sys.executable, str(HERE / script), str(folder), *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=600,
    )
