"""The kernel-level graphs that a prediction is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmc.ir.graph import Graph
from llmc.ir.parser import parse_all

Entries = Mapping[str, Graph]
"""The kernel-level graphs `prefill` and `decode`."""


@dataclass(frozen=True)
class Lowering:
    """Entries that a prediction can be made of. `built_for`: the target of the engine that they are from, if any."""

    entries: Entries
    built_for: str | None = None


def read_entries(text: str) -> Entries:
    """The graphs of a graph.llmc by name. ParseError for those that another llmc has printed."""
    return {g.name: g for g in parse_all(text)}
