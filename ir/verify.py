"""Invariants of the IR, checked after every pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmc.ir.graph import Graph, IRError, Node, Op, Value, bodies
from llmc.ir.types import CacheType

OpTypes = frozenset[type[Op]]


@dataclass(frozen=True)
class Stage:
    """Which ops a graph may hold at a point of a pipeline. `bodies`: which the bodies of an op may hold."""

    name: str
    ops: OpTypes
    bodies: Mapping[type[Op], OpTypes] = field(default_factory=dict)


def verify(graph: Graph, stage: Stage | None = None) -> None:
    """IRError unless: every value has one definition and is defined before use, every node's types are what its op
    infers, each state of the cache is written at most once and read only before that (effects are ordered), and there
    are no ops but those of the stage."""
    _verify(graph, set())
    if stage is not None:
        _verify_stage(graph, stage.ops, stage)


def _verify_stage(graph: Graph, ops: OpTypes, stage: Stage) -> None:
    for node in graph.nodes:
        if type(node.op) not in ops:
            raise IRError(f"{_where(graph, node)}: not an op of the stage {stage.name!r}")
        for body in bodies(node.op):
            _verify_stage(body, stage.bodies.get(type(node.op), frozenset()), stage)


def _verify(graph: Graph, outer: set[Value]) -> None:
    defined = set(outer)
    written: set[Value] = set()
    for value in graph.inputs:
        if value in defined:
            raise IRError(f"graph {graph.name}: input %{value.name} is defined twice")
        defined.add(value)
    for node in graph.nodes:
        where = _where(graph, node)
        for value in node.inputs:
            if value not in defined:
                raise IRError(f"{where}: uses %{value.name}, which is not defined before it")
            if value in written:
                raise IRError(f"{where}: uses cache state %{value.name} after a node has written to it")
        try:
            types = node.op.infer(*(v.type for v in node.inputs))
        except IRError as error:
            raise IRError(f"{where}: {error}") from None
        found = tuple(v.type for v in node.outputs)
        if types != found:
            want, got = ", ".join(map(str, types)), ", ".join(map(str, found))
            raise IRError(f"{where}: infers ({want}), its outputs are ({got})")
        for value in node.outputs:
            if value in defined:
                raise IRError(f"{where}: defines %{value.name} a second time")
            defined.add(value)
        if any(isinstance(v.type, CacheType) for v in node.outputs):
            written.update(v for v in node.inputs if isinstance(v.type, CacheType))
        for body in bodies(node.op):
            _verify(body, set())
    for value in graph.outputs:
        if value not in defined:
            raise IRError(f"graph {graph.name}: output %{value.name} is not defined")


def _where(graph: Graph, node: Node) -> str:
    return f"graph {graph.name}: {node.op.mnemonic()} at {node.loc or 'no module'}"
