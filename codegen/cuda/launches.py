"""Kernels of one node -> launches of a plan: which kernel for which bucket, on which arguments, touching what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmc.codegen.cuda.edges import Access, Span
from llmc.codegen.cuda.kernel import KernelParams, render, symbol_of
from llmc.codegen.memory import Placement
from llmc.runtime.cuda.plan import Argument, Extent, Launch, Variant

UNBOUNDED = 1 << 30  # rows of the last variant of a launch


@dataclass(frozen=True)
class Call:
    """One launch before its edges are known. `touches`: its memory."""

    op: str
    loc: str
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    writes: tuple[str, ...]
    rows: str
    variants: tuple[Variant, ...]
    touches: Access

    def launch(self, after: tuple[int, ...]) -> Launch:
        return Launch(self.op, self.loc, self.reads, self.weights, self.writes, after, self.rows, self.variants)


@dataclass
class Kernels:
    """Sources of kernels by symbol; equal kernels of different layers and entries are one."""

    sources: dict[str, str] = field(default_factory=dict)
    params: dict[str, KernelParams] = field(default_factory=dict)

    def add(self, params: KernelParams) -> str:
        """The kernel's symbol."""
        symbol = symbol_of(params)
        if symbol not in self.sources:
            self.sources[symbol] = render(params, symbol)
            self.params[symbol] = params
        return symbol


def variant(
    symbol: str,
    params: KernelParams,
    grid: tuple[Extent, ...],
    arguments: tuple[Argument, ...],
    up_to: int = UNBOUNDED,
    scratch: Mapping[str, Extent] | None = None,
) -> Variant:
    return Variant(up_to, symbol, grid, params.threads, params.smem_bytes, arguments, scratch or {})


def bytes_of(placement: Placement) -> Span:
    """The bytes of a buffer: per row of its region, as all rows of one region are as many."""
    return Span(placement.life.rows.value, placement.offset, placement.end)


def scratch_span(name: str) -> Span:
    return Span(f"scratch {name}")


def slot_span(slot: int) -> Span:
    """Keys and values of one attention layer, in all blocks."""
    return Span("kv", slot, slot + 1)
