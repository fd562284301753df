"""Invariants of the IR, checked after every pass."""

from __future__ import annotations

from llmc.ir.graph import Graph, IRError, Node, Value, bodies
from llmc.ir.types import CacheType


def verify(graph: Graph) -> None:
    """IRError unless: every value has one definition and is defined before use, every node's types are what its op
    infers, and each state of the cache is written at most once and read only before that (effects are ordered)."""
    _verify(graph, set())


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
