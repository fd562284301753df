"""One order and one naming of a captured graph, whatever order the modeling code ran in.

Modeling code iterates over sets of strings (Gemma 3: the kinds of its layers), so the order of the trace, and torch's
numbering of it, depend on the interpreter's hash seed. What each node is computed from does not.
"""

from __future__ import annotations

import re

from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.constant import Weight

_COUNTER = re.compile(r"(_\d+)+$")


def in_order_of_use(graph: Graph) -> Graph:
    """Weights, then what needs no token (rope tables), then the rest, each in the order in which outputs need it."""
    nodes = _by_need(graph)
    (ids, *_) = graph.inputs
    of_tokens = {ids}
    for node in nodes:
        if not of_tokens.isdisjoint(node.inputs):
            of_tokens.update(node.outputs)

    def phase(node: Node) -> int:
        return 0 if isinstance(node.op, Weight) else 1 if of_tokens.isdisjoint(node.outputs) else 2

    return _renamed(Graph(graph.name, graph.inputs, graph.outputs, tuple(sorted(nodes, key=phase))))


def _by_need(graph: Graph) -> list[Node]:
    """Every node that an output needs, after what it needs itself: depth first, inputs from left to right."""
    producers = graph.producers()
    done: dict[Node, None] = {}
    stack = [(producers[v], False) for v in reversed(graph.outputs) if v in producers]
    while stack:
        node, inputs_done = stack.pop()
        if node in done:
            continue
        if inputs_done:
            done[node] = None
            continue
        stack.append((node, True))
        stack += [(producers[v], False) for v in reversed(node.inputs) if v in producers]
    return list(done)


def _renamed(graph: Graph) -> Graph:
    """Without torch's counters in the names of what is computed; the printer numbers names that are alike."""
    values = {v: v for v in graph.inputs}
    nodes = []
    for node in graph.nodes:
        outputs = node.outputs
        if not isinstance(node.op, Weight):
            outputs = tuple(Value(v.type, _COUNTER.sub("", v.name)) for v in outputs)
        values.update(zip(node.outputs, outputs, strict=True))
        nodes.append(Node(node.op, tuple(values[v] for v in node.inputs), outputs, node.loc))
    return Graph(graph.name, graph.inputs, tuple(values[v] for v in graph.outputs), tuple(nodes))
