"""Which values an entry's launches hand to each other, what they are called in a plan, and where their bytes are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llmc.codegen.hazards import Access, Span, slot_span
from llmc.codegen.kv_groups import slots_of
from llmc.codegen.memory import Life, PlacedBuffers, RowKind, place_buffers
from llmc.ir.dims import Poly
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.kernel import Rows
from llmc.ir.types import TensorType
from llmc.runtime.artifact.plan import Arena, Buffer, PlannedLaunch

# Where an entry keeps rows counted by a symbol: every row of a decode step is sampled.
REGIONS = {
    "prefill": {"T": RowKind.TOKEN, "R": RowKind.SAMPLED},
    "decode": {"T": RowKind.SAMPLED, "R": RowKind.SAMPLED},
}


@dataclass(frozen=True)
class PlacedValues:
    """The nodes that are launched, in order; names of weights, and of all other values; and the arena."""

    nodes: tuple[Node, ...]
    names: dict[Value, str]
    weights: Mapping[Value, str]
    memory: PlacedBuffers

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those that lie in the arena, as a plan has them."""
        return tuple(
            Buffer(p.life.name, str(value.type), p.life.rows.value, p.life.row_bytes, p.offset)
            for value, name in self.names.items()
            if (p := self.memory.placements.get(name)) is not None
        )

    @property
    def arena(self) -> Arena:
        return Arena(self.memory.per_token, self.memory.per_row)

    def spans(self, values: Sequence[Value]) -> tuple[Span, ...]:
        """The bytes of values in the arena: per row of their region, as all rows of one region are as many."""
        names = (self.names.get(v, "") for v in values)
        placed = (self.memory.placements[name] for name in names if name in self.memory.placements)
        return tuple(Span(p.life.rows.value, p.offset, p.end) for p in placed)

    def access(self, node: Node, scratch: Sequence[Span] = ()) -> Access:
        """Of a launch that does all that a node does. `scratch`: what it writes besides."""
        slots = tuple(slot_span(slot) for slot in slots_of(node.op))
        read, written = ((), slots) if isinstance(node.op, Rows) else (slots, ())
        return Access((*self.spans(node.inputs), *read), (*self.spans(node.outputs), *written, *scratch))

    def planned(self, node: Node, op: str | None = None) -> PlannedLaunch:
        """As a plan says it, before its edges are known; `op` where the node has several launches."""
        return PlannedLaunch(
            op or node.op.mnemonic(),
            node.loc,
            tuple(self.names[v] for v in node.inputs if v in self.names),
            tuple(self.weights[v] for v in node.inputs if v in self.weights),
            tuple(self.names[v] for v in node.outputs),
            (),
        )


def place_values(
    graph: Graph, row_bytes: Callable[[TensorType], int], weights: Mapping[Value, str] | None = None
) -> PlacedValues:
    """Values of a kernel-level graph in the arena. `row_bytes`: of a tensor that a launch writes. `weights`: names."""
    nodes = tuple(n for n in graph.nodes if not isinstance(n.op, Weight))
    names = {v: v.name for v in graph.inputs}
    for i, node in enumerate(nodes):
        for j, value in enumerate(node.outputs):
            names[value] = f"b{i}_{j}" if len(node.outputs) > 1 else f"b{i}"
    return PlacedValues(nodes, names, weights or {}, place_buffers(_lives(graph, nodes, names, row_bytes)))


def row_symbol(type_: TensorType) -> str:
    """The symbol that counts the rows of a [T, ...] or [R, ...] value."""
    rows = type_.shape[0] if type_.shape else None
    if not isinstance(rows, Poly):
        raise IRError(f"{type_} has no rows")
    return str(rows)


def _lives(
    graph: Graph, nodes: tuple[Node, ...], names: dict[Value, str], row_bytes: Callable[[TensorType], int]
) -> list[Life]:
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            last[value] = i
    for value in graph.outputs:
        last[value] = len(nodes)
    regions = REGIONS[graph.name]
    return [
        Life(names[value], regions[row_symbol(value.type)], row_bytes(value.type), i, last.get(value, i))
        for i, node in enumerate(nodes)
        for value in node.outputs
        if isinstance(value.type, TensorType)
    ]
