"""A CPU target's launch plans: the order that model.cpp has, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmc.codegen.buffers import PlacedValues, place_values
from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.hazards import edges, meetings, scratch_span
from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.attention import PagedAttention
from llmc.runtime.artifact.plan import FORMAT, PlannedLaunch

PARTIALS = scratch_span("attention")  # results of splits: one place for all attention of an entry


@dataclass(frozen=True)
class CpuLaunch(PlannedLaunch):
    """`sync`: workers meet before it starts."""

    sync: bool


@dataclass(frozen=True)
class CpuPlan:
    """An entry: its values, and a launch for each of its nodes."""

    entry: str
    values: PlacedValues
    launches: tuple[CpuLaunch, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """That the launches run, in their order."""
        return self.values.nodes

    def to_json(self) -> str:
        """Stable, indented JSON of everything but the nodes."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "entry": self.entry,
            "arena": dataclasses.asdict(self.values.arena),
            "buffers": [dataclasses.asdict(b) for b in self.values.buffers],
            "launches": [dataclasses.asdict(launch) for launch in self.launches],
        }
        return json.dumps(content, indent=1) + "\n"


def make_plan(graph: Graph, weights: Mapping[Value, str]) -> CpuPlan:
    """The plan of a kernel-level graph. `weights`: their names."""
    values = place_values(graph, row_bytes, weights)
    accesses = [values.access(node, [PARTIALS] if isinstance(node.op, PagedAttention) else []) for node in values.nodes]
    launches = tuple(
        CpuLaunch(**vars(values.planned(node)) | {"after": after}, sync=sync)
        for node, after, sync in zip(values.nodes, edges(accesses), meetings(accesses), strict=True)
    )
    return CpuPlan(graph.name, values, launches)
