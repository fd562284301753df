"""All planted bugs, by kind, and their kernels as one source."""

from __future__ import annotations

from planted import Bug
from planted_barriers import BARRIERS_BUGS
from planted_copies import COPIES_BUGS
from planted_memory import MEMORY_BUGS
from planted_order import ORDER_BUGS
from planted_wgmma import WGMMA_BUGS

BUGS: tuple[Bug, ...] = (*BARRIERS_BUGS, *MEMORY_BUGS, *ORDER_BUGS, *COPIES_BUGS, *WGMMA_BUGS)


def translation_unit(planted: bool) -> str:
    """All kernels in one source, k0, k1, ...; to the compiler each is a file bug.cu of its own."""
    parts = ['#include "device.cuh"', "#define BUG 1" if planted else "#define FINE 1"]
    for i, bug in enumerate(BUGS):
        parts += ['#line 1 "bug.cu"', bug.source.replace(" k(", f" k{i}(", 1), f"LLMC_EXPORT(k{i})"]
    return "\n".join(parts)
