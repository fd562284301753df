"""Kernel parameters, their rendering through Jinja2, and the budget a kernel's SASS must keep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Protocol

import jinja2

from llmc.codegen.cuda.arguments import KernelArgument
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, headers

LOOP_LOADS = 4  # loads of a plain loop that are in flight at a time: what the compiler makes of it


@dataclass(frozen=True)
class Budget:
    """Limits on a kernel's SASS. `opcodes`: least count per opcode prefix (`LDGSTS.E.BYPASS.128` and the
    like);
    `exact`: the very count. No kernel may spill or use local memory; that needs no entry."""

    max_registers: int
    max_instructions: int
    opcodes: Mapping[str, int] = field(default_factory=dict)
    exact: Mapping[str, int] = field(default_factory=dict)


class KernelParams(Protocol):
    """A frozen dataclass per kernel; illegal values raise ValueError in __post_init__."""

    template: ClassVar[str]

    def __hash__(self) -> int: ...

    @property
    def label(self) -> str: ...  # the readable middle of the symbol, e.g. bf16_h576

    @property
    def arguments(self) -> tuple[KernelArgument, ...]: ...  # in the kernel's order

    @property
    def threads(self) -> int: ...

    @property
    def smem_bytes(self) -> int: ...  # dynamic shared memory of the launch

    @property
    def blocks_per_sm(self) -> int: ...  # occupancy the registers are bounded for

    def rejects(self, target: CudaTarget) -> str | None: ...

    def budget(self, target: CudaTarget) -> Budget: ...


def check(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def rejects_smem(params: KernelParams, target: CudaTarget) -> str | None:
    if params.smem_bytes > target.smem_optin:
        return f"{params.smem_bytes} B of shared memory, {target.arch} has {target.smem_optin} per block"
    return None


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


@cache
def symbol_of(params: KernelParams) -> str:
    """`<op>__<label>__<hash>`: the hash covers what is compiled, the source and every header, so that a changed kernel
    is a new one, and parameters that only tell the same otherwise are not."""
    compiled = [render(params, "kernel"), *headers().values()]
    h = hashlib.sha256("\0".join(compiled).encode()).hexdigest()[:8]
    return f"{params.template}__{params.label}__{h}"


def render(params: KernelParams, symbol: str | None = None) -> str:
    """The CUDA source of one kernel."""
    template = _environment().get_template(f"{params.template}.cu.j2")
    return template.render(p=params, symbol=symbol or symbol_of(params))
