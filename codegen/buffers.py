"""Which values an entry's launches hand to each other, what they are called in a plan, and where their bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmc.codegen.memory import Life, MemoryPlan, RowKind, plan_memory
from llmc.ir.dims import Poly
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.constant import Weight
from llmc.ir.types import TensorType
from llmc.runtime.artifact.plan import Arena, Buffer


@dataclass(frozen=True)
class PlacedValues:
    """The nodes that are launched, in order; names of all values but weights; and the arena."""

    nodes: tuple[Node, ...]
    names: dict[Value, str]
    memory: MemoryPlan

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


def place_values(graph: Graph, row_bytes: Mapping[Value, int], region: Mapping[str, RowKind]) -> PlacedValues:
    """Values of a kernel-level graph in the arena.

    `row_bytes`: of every tensor value that a launch writes. `region`: where rows counted by a symbol are kept.
    """
    nodes = tuple(n for n in graph.nodes if not isinstance(n.op, Weight))
    names = {v: v.name for v in graph.inputs}
    for i, node in enumerate(nodes):
        for j, value in enumerate(node.outputs):
            names[value] = f"b{i}_{j}" if len(node.outputs) > 1 else f"b{i}"
    return PlacedValues(nodes, names, plan_memory(_lives(graph, nodes, names, row_bytes, region)))


def row_symbol(type_: TensorType) -> str:
    """The symbol that counts the rows of a [T, ...] or [R, ...] value."""
    rows = type_.shape[0] if type_.shape else None
    if not isinstance(rows, Poly):
        raise IRError(f"{type_} has no rows")
    return str(rows)


def _lives(
    graph: Graph,
    nodes: tuple[Node, ...],
    names: dict[Value, str],
    row_bytes: Mapping[Value, int],
    region: Mapping[str, RowKind],
) -> list[Life]:
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            last[value] = i
    for value in graph.outputs:
        last[value] = len(nodes)
    return [
        Life(names[value], region[row_symbol(value.type)], row_bytes[value], i, last.get(value, i))
        for i, node in enumerate(nodes)
        for value in node.outputs
        if isinstance(value.type, TensorType)
    ]
