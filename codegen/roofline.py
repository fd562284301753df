"""What a machine can do at most, and the least time in which work can be done on it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from llmc.codegen.work import Unit, Work


@dataclass(frozen=True)
class Peaks:
    """Operations per second of each arithmetic, a multiply-accumulate being two; None: no figure is known, or there
    is no such unit. f32 is the vector units' rate, the others are the matrix units'."""

    f32: float | None = None
    f16: float | None = None
    bf16: float | None = None
    e4m3: float | None = None
    s8: float | None = None

    def of(self, unit: Unit) -> float | None:
        rate: float | None = getattr(self, unit.value)
        return rate


@dataclass(frozen=True)
class Machine:
    """`bandwidth` of the memory in bytes per second; `cache_bytes`: what may stay near between two kernels."""

    bandwidth: float
    cache_bytes: int
    peaks: Peaks


class Bound(enum.Enum):
    """What a kernel cannot be faster than."""

    MEMORY = "memory"
    MATRIX = "matrix"
    VECTOR = "vector"


@dataclass(frozen=True)
class Floor:
    """The least seconds that a piece of work takes, and why."""

    seconds: float
    bound: Bound


def memory_bytes(work: Work, cache_bytes: int) -> int:
    """Bytes that must cross the memory bus: weights and the KV cache always, activations where they do not all fit the
    cache in which the kernel before left them."""
    return work.weights + work.kv + (work.activations if work.activations > cache_bytes else 0)


def floor(work: Work, machine: Machine) -> Floor | None:
    """max(bytes / bandwidth, operations / peak); None where the machine's rate for its arithmetic is unknown."""
    times = [Floor(memory_bytes(work, machine.cache_bytes) / machine.bandwidth, Bound.MEMORY)]
    for operations, unit, bound in (
        (work.matrix_flops, work.matrix_unit, Bound.MATRIX),
        (work.vector_flops, Unit.F32, Bound.VECTOR),
    ):
        if operations:
            rate = machine.peaks.of(unit)
            if rate is None:
                return None
            times.append(Floor(operations / rate, bound))
    return max(times, key=lambda t: t.seconds)


@dataclass(frozen=True)
class Estimate:
    """Expected seconds of a node, its launches and gaps among them, and how they come about."""

    seconds: float
    launches: int
    note: str
