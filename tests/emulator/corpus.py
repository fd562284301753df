"""All planted bugs, by kind, and their kernels as one source."""

from __future__ import annotations

from tests.emulator.planted import Bug
from tests.emulator.planted_barriers import BARRIERS_BUGS
from tests.emulator.planted_copies import COPIES_BUGS
from tests.emulator.planted_memory import MEMORY_BUGS
from tests.emulator.planted_order import ORDER_BUGS
from tests.emulator.planted_wgmma import WGMMA_BUGS

BUGS: tuple[Bug, ...] = (*BARRIERS_BUGS, *MEMORY_BUGS, *ORDER_BUGS, *COPIES_BUGS, *WGMMA_BUGS)


def translation_unit(planted: bool) -> str:
    """All kernels in one source, k0, k1, ...; to the compiler each is a file bug.cu of its own."""
    parts = ['#include "device.cuh"', "#define BUG 1" if planted else "#define FINE 1"]
    for i, bug in enumerate(BUGS):
        parts += ['#line 1 "bug.cu"', bug.source.replace(" k(", f" k{i}(", 1), f"LLMC_EXPORT(k{i})"]
    return "\n".join(parts)
