"""Kernels of one node -> launches of a plan: which kernel for which bucket, on which arguments, touching what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import llmc.runtime.cuda.plan as plan
from llmc.codegen.buffers import PlacedValues
from llmc.codegen.cuda.arguments import (
    Input,
    KernelArgument,
    Number,
    Output,
    Part,
    Result,
    Scratch,
    Slot,
    StepArray,
    Whole,
)
from llmc.codegen.cuda.kernel import KernelParams, render, symbol_of
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.hazards import Access
from llmc.codegen.kv_groups import KvGroups, Place, slots_of
from llmc.codegen.preference import Preference
from llmc.ir.graph import IRError, Node, Value
from llmc.runtime.cuda.plan import Argument, Box, Extent, Launch, Sizes, Variant

UNBOUNDED = 1 << 30  # rows of the last variant of a launch
MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of a grid (CUDA Programming Guide, compute capabilities)


@dataclass(frozen=True)
class Call:
    """One launch before its edges are known, and the memory it touches."""

    launch: Launch
    touches: Access


def refuse_grid(call: Call, most: Sizes) -> None:
    """IRError for a launch that would have more blocks than CUDA takes, in a step of these sizes."""
    launch = call.launch
    for variant in launch.variants:
        grid = [extent.at(most) for extent in variant.grid]
        for axis, blocks, limit in zip("xyz", grid, MOST_BLOCKS, strict=False):
            if blocks > limit:
                raise IRError(
                    f"{launch.op} at {launch.loc}: {blocks} blocks along {axis} of its grid, CUDA takes {limit}: "
                    f"too long a context or window (--max-seq-len is {most.length}), "
                    f"or too large a step ({most.tokens} tokens)"
                )


@dataclass
class ChosenKernels:
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

    def scratch(self, symbols: Iterable[str]) -> tuple[plan.Scratch, ...]:
        """All that these kernels take, as a plan has it."""
        operands = (argument.operand for symbol in symbols for argument in self.params[symbol].arguments)
        found = dict.fromkeys(operand for operand in operands if isinstance(operand, Scratch))
        return tuple(plan.Scratch(memory.name, memory.zeroed) for memory in found)


@dataclass(frozen=True)
class Scope:
    """Where values and caches are, and what is compiled for. `most`: the largest value of T and of R."""

    target: Gpu
    values: PlacedValues
    kv: KvGroups
    most: Mapping[str, int]
    kernels: ChosenKernels

    def argument(self, node: Node, argument: KernelArgument, numbers: Mapping[str, float]) -> Argument:
        """What the plan passes for one of a kernel's arguments. `numbers`: those that the node's op decides."""
        match argument.operand:
            case Input(index):
                return self._address(node.inputs[index], argument.box)
            case Output(index):
                return self._address(node.outputs[index], argument.box)
            case StepArray(name):
                return Argument("input", name)
            case Result(name):
                return Argument("output", name)
            case Scratch(name):
                return Argument("scratch", name)
            case Slot(part, index):
                return self._of_slot(part, self.kv.places[slots_of(node.op)[index]])
            case Whole(extent):
                return Argument("extent", extent=extent)
            case Number(name):
                return Argument("f32", value=numbers[name])

    def _address(self, value: Value, box: Box | None) -> Argument:
        if value in self.values.weights:
            return Argument("weight", self.values.weights[value], box=box)
        return Argument("input" if self.is_step_array(value) else "buffer", self.values.names[value], box=box)

    def _of_slot(self, part: Part, place: Place) -> Argument:
        match part:
            case Part.POOL:
                return Argument("kv", str(place.group))
            case Part.BLOCK_BYTES:
                return Argument("i64", value=self.kv.groups[place.group].block_bytes)
            case Part.OFFSET:
                return Argument("i64", value=place.offset)
            case Part.TABLES:
                return Argument("input", f"tables.{place.group}")

    def is_step_array(self, value: Value) -> bool:
        """Is it an array of the step, whose rows stand without gaps?"""
        return value not in self.values.weights and self.values.names[value] not in self.values.memory.placements

    def call(self, node: Node, rows: str, variants: Sequence[Variant], touches: Access, op: str | None = None) -> Call:
        """A launch of a node; `op` where the node has several. `rows`: the symbol that its variants' `up_to` bounds."""
        return Call(Launch(**vars(self.values.planned(node, op)), rows=rows, variants=tuple(variants)), touches)

    def variant(
        self,
        node: Node,
        params: KernelParams,
        grid: Sequence[Extent],
        *,
        up_to: int | None = None,
        scratch: Mapping[Scratch, Extent] | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Variant:
        """A kernel for a node, in buckets of up to `up_to` rows (None: of any)."""
        return Variant(
            UNBOUNDED if up_to is None else up_to,
            self.kernels.add(params),
            tuple(grid),
            params.threads,
            params.smem_bytes,
            tuple(self.argument(node, argument, numbers or {}) for argument in params.arguments),
            {memory.name: extent for memory, extent in (scratch or {}).items()},
        )
