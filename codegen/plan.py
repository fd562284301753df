"""Launch plans: what an entry runs, in order, on which bytes. One JSON per entry, the same for every target."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmc.codegen.buffers import place_values
from llmc.codegen.memory import MemoryPlan, RowKind
from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.types import CacheType
from llmc.runtime.artifact.plan import FORMAT, Arena, Buffer


@dataclass(frozen=True)
class Launch:
    """One kernel call. `after`: the launches whose results it needs. `sync`: workers meet before it starts."""

    op: str
    loc: str
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    writes: tuple[str, ...]
    after: tuple[int, ...]
    sync: bool


@dataclass(frozen=True)
class Plan:
    """An entry: its buffers and launches, with the nodes the launches run (same order)."""

    entry: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    nodes: tuple[Node, ...]
    names: dict[Value, str]
    arena: Arena

    def to_json(self) -> str:
        """Stable, indented JSON of everything but the nodes."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "entry": self.entry,
            "arena": dataclasses.asdict(self.arena),
            "buffers": [dataclasses.asdict(b) for b in self.buffers],
            "launches": [dataclasses.asdict(launch) for launch in self.launches],
        }
        return json.dumps(content, indent=1) + "\n"


def make_plan(
    graph: Graph, row_bytes: dict[Value, int], weight_names: dict[Value, str], region: Mapping[str, RowKind]
) -> Plan:
    """The plan of a kernel-level graph.

    `row_bytes`: of every tensor value that a launch writes. `region`: where rows counted by a symbol are kept.
    """
    placed = place_values(graph, row_bytes, region)
    nodes, names, memory = placed.nodes, placed.names, placed.memory
    after = _dependencies(nodes)
    launches = []
    pending: list[Node] = []
    for i, node in enumerate(nodes):
        sync = any(_conflict(node, other, names, memory) for other in pending)
        if sync:
            pending = []
        pending.append(node)
        launches.append(
            Launch(
                node.op.mnemonic(),
                node.loc,
                tuple(names[v] for v in node.inputs if v in names),
                tuple(weight_names[v] for v in node.inputs if v in weight_names),
                tuple(names[v] for v in node.outputs),
                after[i],
                sync,
            )
        )
    return Plan(graph.name, placed.buffers, tuple(launches), nodes, names, placed.arena)


def _dependencies(nodes: tuple[Node, ...]) -> list[tuple[int, ...]]:
    writer = {value: i for i, node in enumerate(nodes) for value in node.outputs}
    return [tuple(sorted({writer[v] for v in node.inputs if v in writer})) for node in nodes]


def _conflict(node: Node, other: Node, names: dict[Value, str], memory: MemoryPlan) -> bool:
    """Must `node` wait for `other`: does one write what the other touches?"""
    if isinstance(node.op, PagedAttention) and isinstance(other.op, PagedAttention):
        return True  # both write partial results to one scratch

    def touches(values: tuple[Value, ...], written: tuple[Value, ...]) -> bool:
        for a in values:
            for b in written:
                if isinstance(a.type, CacheType) or isinstance(b.type, CacheType):
                    if isinstance(a.type, CacheType) and isinstance(b.type, CacheType):
                        return True
                    continue
                first, second = memory.placements.get(names.get(a, "")), memory.placements.get(names.get(b, ""))
                if first is not None and second is not None and first.overlaps(second):
                    return True
        return False

    return (
        touches(node.inputs, other.outputs)
        or touches(other.inputs, node.outputs)
        or touches(node.outputs, other.outputs)
    )
