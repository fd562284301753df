"""Where targets are found by name: CPUs (codegen/cpu/target.py) and GPUs (codegen/cuda/target/gpus.py)."""

from __future__ import annotations

from llmc.codegen.cpu.target import TargetError, cpu_names, find_cpu
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.targets.backend import Backend
from llmc.compiler.targets.cpu import CpuBackend
from llmc.compiler.targets.cuda import CudaBackend


def target_names() -> tuple[str, ...]:
    """What find_target takes."""
    return (*cpu_names(), *GPUS)


def find_target(name: str) -> Backend:
    """The target called `name`, for example `cpu`, `x86-64-v4+vnni+bf16`, `h100`; else TargetError."""
    if (gpu := GPUS.get(name)) is not None:
        return CudaBackend(gpu)
    if (cpu := find_cpu(name)) is not None:
        return CpuBackend(cpu)
    raise TargetError(f"unknown target {name!r}: expected one of {', '.join(target_names())}")
