"""What a CUDA target offers: data the kernels ask (`has("wgmma")`), never a name they compare.

An architecture is a line of TARGETS, and a GPU of it an entry of gpus.py: what can be compiled for, what the emulator
is told to be, and which targets a card runs, follow from these two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True)
class CudaTarget:
    """Shared memory in bytes: most per block (opt-in) and per multiprocessor; threads, registers and blocks that a
    multiprocessor holds at a time (CUDA C++ Programming Guide, technical specifications per compute capability)."""

    arch: str
    features: frozenset[str]
    smem_optin: int
    smem_sm: int
    threads_sm: int = 2048
    regs_sm: int = 65536
    blocks_sm: int = 32

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, major and minor."""
        found = re.fullmatch(r"sm_(\d+)(\d)[af]?", self.arch)
        assert found is not None, f"{self.arch} is no architecture"
        return int(found[1]), int(found[2])


_AMPERE = frozenset({"cp_async", "mma_bf16", "mma_f16", "mma_s8"})
_HOPPER = _AMPERE | {"mma_e4m3", "mbarrier", "tma", "pdl"}
TARGETS = {
    t.arch: t
    for t in (
        CudaTarget("sm_80", _AMPERE, 163 * KIB, 164 * KIB),
        CudaTarget("sm_89", _AMPERE | {"mma_e4m3"}, 99 * KIB, 100 * KIB, threads_sm=1536, blocks_sm=24),
        CudaTarget("sm_90a", _HOPPER | {"wgmma", "setmaxnreg"}, 227 * KIB, 228 * KIB),
        CudaTarget("sm_100a", _HOPPER, 227 * KIB, 228 * KIB),
    )
}
