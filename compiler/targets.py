"""Where targets are found by name: CPUs (codegen/cpu/target.py) and GPUs (codegen/cuda/target/gpus.py)."""

from __future__ import annotations

from llmc.codegen.cpu.target import CpuTarget, TargetError, cpu_names, find_cpu
from llmc.codegen.cuda.target.gpus import GPUS, Gpu

Target = CpuTarget | Gpu


def target_names() -> tuple[str, ...]:
    """What find_target takes."""
    return (*cpu_names(), *GPUS)


def find_target(name: str) -> Target:
    """The target called `name`, for example `cpu`, `x86-64-v4+vnni+bf16`, `h100`; else TargetError."""
    found = GPUS.get(name) or find_cpu(name)
    if found is None:
        raise TargetError(f"unknown target {name!r}: expected one of {', '.join(target_names())}")
    return found
