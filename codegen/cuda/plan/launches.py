"""Kernels of one node -> launches of a plan: which kernel for which bucket, on which arguments, touching what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmc.codegen.buffers import PlacedValues, row_symbol
from llmc.codegen.cuda.kernel import KernelParams, render, symbol_of
from llmc.codegen.cuda.plan.edges import Access, Span
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.preference import Preference
from llmc.ir.graph import IRError, Node, Value
from llmc.ir.types import TensorType
from llmc.runtime.cuda.plan import Argument, Box, Extent, Launch, Sizes, Variant

UNBOUNDED = 1 << 30  # rows of the last variant of a launch
MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of a grid (CUDA Programming Guide, compute capabilities)
COUNTS = Argument("input", "counts")


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


def refuse_grid(call: Call, most: Sizes) -> None:
    """IRError for a launch that would have more blocks than CUDA takes, in a step of these sizes."""
    for variant in call.variants:
        grid = [extent.at(most) for extent in variant.grid]
        for axis, blocks, limit in zip("xyz", grid, MOST_BLOCKS, strict=False):
            if blocks > limit:
                raise IRError(
                    f"{call.op} at {call.loc}: {blocks} blocks along {axis} of its grid, CUDA takes {limit}: "
                    f"too long a context or window (--max-seq-len is {most.length}), "
                    f"or too large a step ({most.tokens} tokens)"
                )


@dataclass
class Kernels:
    """Kernels by symbol, with their sources; equal ones of different layers and entries are one. `preferences`: where
    there was a choice."""

    sources: dict[str, str] = field(default_factory=dict)
    params: dict[str, KernelParams] = field(default_factory=dict)
    preferences: dict[tuple[str, ...], Preference] = field(default_factory=dict)

    def prefer(self, why: Preference) -> None:
        """Note a choice between kernels; where it was the same before, it now tells of these kernels too."""
        key = (why.op, why.of, why.chosen, why.reason)
        known = self.preferences.get(key, why)
        kernels = tuple(dict.fromkeys((*known.kernels, *why.kernels)))
        self.preferences[key] = replace(known, kernels=kernels)

    def add(self, params: KernelParams) -> str:
        """The kernel's symbol."""
        symbol = symbol_of(params)
        if symbol not in self.sources:
            self.sources[symbol] = render(params, symbol)
            self.params[symbol] = params
        return symbol


@dataclass(frozen=True)
class Scope:
    """Where a node's values are, and what it is compiled for. `most`: the largest value of T and of R."""

    target: Gpu
    values: PlacedValues
    weights: Mapping[Value, str]
    most: Mapping[str, int]
    kernels: Kernels

    def symbol(self, value: Value) -> str:
        """What counts the rows of a value: T, or R where they are the sampled ones."""
        return row_symbol(value.tensor)

    def argument(self, value: Value, box: Box | None = None) -> Argument:
        """The address of a value, or a tensor map over it."""
        if value in self.weights:
            return Argument("weight", self.weights[value], box=box)
        name = self.values.names[value]
        return Argument("buffer" if name in self.values.memory.placements else "input", name, box=box)

    def is_step_array(self, value: Value) -> bool:
        """Is it an array of the step, whose rows stand without gaps?"""
        return value not in self.weights and self.values.names[value] not in self.values.memory.placements

    def spans(self, values: Sequence[Value]) -> tuple[Span, ...]:
        """The bytes of values in the arena: per row of their region, as all rows of one region are as many."""
        names = [self.values.names.get(v, "") for v in values if isinstance(v.type, TensorType)]
        placed = [self.values.memory.placements[n] for n in names if n in self.values.memory.placements]
        return tuple(Span(p.life.rows.value, p.offset, p.end) for p in placed)

    def call(self, node: Node, rows: str, variants: Sequence[Variant], touches: Access, op: str | None = None) -> Call:
        """A launch that works on all of a node's values; `op` where the node has several launches."""
        return Call(
            op or node.op.mnemonic(),
            node.loc,
            tuple(self.values.names[v] for v in node.inputs if v in self.values.names),
            tuple(self.weights[v] for v in node.inputs if v in self.weights),
            tuple(self.values.names[v] for v in node.outputs),
            rows,
            tuple(variants),
            touches,
        )

    def variant(
        self,
        params: KernelParams,
        grid: Sequence[Extent],
        arguments: Sequence[Argument],
        up_to: int | None = None,
        scratch: Mapping[str, Extent] | None = None,
    ) -> Variant:
        symbol = self.kernels.add(params)
        return Variant(
            UNBOUNDED if up_to is None else up_to,
            symbol,
            tuple(grid),
            params.threads,
            params.smem_bytes,
            tuple(arguments),
            scratch or {},
        )


def scratch_span(name: str) -> Span:
    return Span(f"scratch {name}")


def slot_span(slot: int) -> Span:
    """Keys and values of one attention layer, in all blocks."""
    return Span("kv", slot, slot + 1)
