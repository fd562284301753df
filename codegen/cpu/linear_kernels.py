"""Which micro-kernel computes the linears of a scheme on a target: every candidate, and why not.

The choice is made by features alone, so that one engine has one arithmetic; templates/cpu/tile.h compiles the kernel
that the macro of the chosen candidate names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmc.codegen.cpu.formats import kernel_type
from llmc.codegen.preference import Preference
from llmc.ir.formats import SCHEMES, Scheme
from llmc.ir.graph import IRError


class Features(Protocol):
    """A target, as far as kernels care."""

    def has(self, feature: str) -> bool:
        """Does the target have a feature, by its /proc/cpuinfo name?"""


@dataclass(frozen=True)
class LinearKernel:
    """For schemes with the weights of `scheme`. `macs_per_cycle`: peak multiply-accumulates of one core (Intel and AMD
    optimisation manuals). `group_step`: columns of the input that it takes at a time, of one group."""

    name: str
    scheme: Scheme
    needs: tuple[str, ...]
    macs_per_cycle: int
    group_step: int = 1

    def rejects(self, target: Features, scheme: Scheme) -> str | None:
        """Why it cannot compute the scheme on the target, or None."""
        if (scheme.operand.group or 0) % self.group_step:
            return f"needs groups of whole {self.group_step} columns"
        missing = [f for f in self.needs if not target.has(f)]
        return f"needs {', '.join(missing)}" if missing else None


LINEAR_KERNELS = (
    LinearKernel("amx-bf16 tiles", Scheme.BF16, ("amx_tile", "amx_bf16"), 512),
    LinearKernel("vdpbf16ps", Scheme.BF16, ("avx512_bf16",), 64),
    LinearKernel("bf16 widened, 512-bit fma", Scheme.BF16, ("avx512f",), 32),
    LinearKernel("bf16 widened, 256-bit fma", Scheme.BF16, ("avx2", "fma"), 16),
    LinearKernel("bf16 widened, 128-bit fma", Scheme.BF16, ("asimd",), 8),
    LinearKernel("bf16 widened, portable", Scheme.BF16, (), 4),
    LinearKernel("amx-int8 tiles", Scheme.INT8, ("amx_tile", "amx_int8"), 1024, group_step=64),
    LinearKernel("vpdpbusd", Scheme.INT8, ("avx512_vnni",), 128),
    LinearKernel("int8 widened, 512-bit", Scheme.INT8, ("avx512bw",), 32),
    LinearKernel("int8 widened, 256-bit", Scheme.INT8, ("avx2",), 16),
    LinearKernel("usdot", Scheme.INT8, ("i8mm",), 32),
    LinearKernel("sdot", Scheme.INT8, ("asimddp",), 16),
    LinearKernel("int8 widened, 128-bit", Scheme.INT8, ("asimd",), 8),
    LinearKernel("int8, portable", Scheme.INT8, (), 4),
    LinearKernel("512-bit fma", Scheme.F32, ("avx512f",), 32),
    LinearKernel("256-bit fma", Scheme.F32, ("avx2", "fma"), 16),
    LinearKernel("128-bit fma", Scheme.F32, ("asimd",), 8),
    LinearKernel("portable", Scheme.F32, (), 4),
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
    candidates = [k for k in LINEAR_KERNELS if k.scheme.weight == scheme.weight]
    usable = [k for k in candidates if k.rejects(target, scheme) is None]
    chosen = max(usable, key=lambda k: k.macs_per_cycle)
    rejected = {}
    for kernel in candidates:
        if kernel is not chosen:
            slower = f"{kernel.macs_per_cycle} instead of {chosen.macs_per_cycle} multiply-adds a cycle"
            rejected[kernel.name] = kernel.rejects(target, scheme) or slower
    return Choice(chosen, rejected)
