"""Which micro-kernel computes the linears of a scheme on a target: every candidate, and why not.

The choice is made by features alone, so that one engine has one arithmetic; the macros of the target compile the same
choice into the tiles of templates/cpu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmc.codegen.cpu.formats import kernel_type
from llmc.codegen.preference import Preference
from llmc.ir.formats import SCHEMES, Numbers, Scheme
from llmc.ir.graph import IRError
from llmc.ir.types import DType


class Features(Protocol):
    """A target, as far as kernels care."""

    def has(self, feature: str) -> bool:
        """Does the target have a feature, by its /proc/cpuinfo name?"""


@dataclass(frozen=True)
class LinearKernel:
    """For inputs of an element type. `macs_per_cycle`: peak multiply-accumulates of one core (Intel and AMD
    optimisation manuals). `group_step`: columns of the input that it takes at a time, of one group. `weights`: the
    numbers that it takes, any where it does not say; `elements`: those of their codes."""

    name: str
    operand: DType
    needs: tuple[str, ...]
    macs_per_cycle: int
    group_step: int = 1
    weights: Numbers | None = None
    elements: tuple[DType, ...] | None = None

    def rejects(self, target: Features, scheme: Scheme) -> str | None:
        """Why it cannot compute the scheme on the target, or None."""
        if self.weights not in (None, scheme.weight):
            return f"needs weights in {self.weights}"
        if self.elements is not None and scheme.weight.element not in self.elements:
            return f"needs weights in {' or '.join(e.value for e in self.elements)}"
        if (scheme.operand.group or 0) % self.group_step:
            return f"needs groups of whole {self.group_step} columns"
        missing = [f for f in self.needs if not target.has(f)]
        return f"needs {', '.join(missing)}" if missing else None


_SMALL = (DType.I4, DType.U4, DType.F4_E2M1)  # codes whose products can be summed in 16 bits: tile_codes.h
LINEAR_KERNELS = (
    LinearKernel("amx-bf16 tiles", DType.BF16, ("amx_tile", "amx_bf16"), 512, weights=Scheme.BF16.weight),
    LinearKernel("vdpbf16ps", DType.BF16, ("avx512_bf16",), 64),
    LinearKernel("bf16 widened, 512-bit fma", DType.BF16, ("avx512f",), 32),
    LinearKernel("bf16 widened, 256-bit fma", DType.BF16, ("avx2", "fma"), 16),
    LinearKernel("bf16 widened, 128-bit fma", DType.BF16, ("asimd",), 8),
    LinearKernel("bf16 widened, portable", DType.BF16, (), 4),
    LinearKernel("amx-int8 tiles", DType.I8, ("amx_tile", "amx_int8"), 1024, 64, Scheme.INT8.weight),
    LinearKernel("vpdpbusd", DType.I8, ("avx512_vnni",), 128),
    LinearKernel("vpdpbusd, 256-bit", DType.I8, ("avx_vnni",), 64),
    LinearKernel("vpmaddubsw, 512-bit", DType.I8, ("avx512bw",), 64, elements=_SMALL),
    LinearKernel("int8 widened, 512-bit", DType.I8, ("avx512bw",), 32),
    LinearKernel("vpmaddubsw, 256-bit", DType.I8, ("avx2",), 32, elements=_SMALL),
    LinearKernel("int8 widened, 256-bit", DType.I8, ("avx2",), 16),
    LinearKernel("usdot", DType.I8, ("i8mm",), 32),
    LinearKernel("sdot", DType.I8, ("asimddp",), 16),
    LinearKernel("int8 widened, 128-bit", DType.I8, ("asimd",), 8),
    LinearKernel("int8, portable", DType.I8, (), 4),
    LinearKernel("512-bit fma", DType.F32, ("avx512f",), 32),
    LinearKernel("256-bit fma", DType.F32, ("avx2", "fma"), 16),
    LinearKernel("128-bit fma", DType.F32, ("asimd",), 8),
    LinearKernel("portable", DType.F32, (), 4),
)


@dataclass(frozen=True)
class Choice:
    """The fastest candidate that the target can run, and the others with their reasons."""

    chosen: LinearKernel
    rejected: dict[str, str]

    @property
    def preference(self) -> Preference:
        """For the build's report."""
        reason = f"{self.chosen.macs_per_cycle} multiply-adds a cycle and core: at peak"
        return Preference("packed_linear", "every linear", self.chosen.name, reason, self.rejected)


def choose_linear(scheme: Scheme, target: Features) -> Choice:
    """The kernel for all linears of a scheme. IRError for a scheme that no CPU kernel has."""
    if kernel_type(scheme) is None:
        wanted = ", ".join(str(s) for s in SCHEMES if kernel_type(s))
        raise IRError(f"no CPU kernel multiplies in {scheme}: use {wanted}")
    candidates = [k for k in LINEAR_KERNELS if k.operand is scheme.operand.element]
    usable = [k for k in candidates if k.rejects(target, scheme) is None]
    chosen = max(usable, key=lambda k: k.macs_per_cycle)
    rejected = {}
    for kernel in candidates:
        if kernel is not chosen:
            slower = f"{kernel.macs_per_cycle} instead of {chosen.macs_per_cycle} multiply-adds a cycle"
            rejected[kernel.name] = kernel.rejects(target, scheme) or slower
    return Choice(chosen, rejected)
