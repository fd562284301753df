"""What formats are chosen for: linears that read the same value, which become one and so have one format."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.weights import sources
from llmc.ir.graph import Graph, Value
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.reduce import Linear

Tensors = tuple[str, ...]
"""Those of the checkpoint that a weight is made of, by name."""


@dataclass(frozen=True)
class Part:
    """The linears of a module: their weights are rows of one matrix [N, K]."""

    module: str
    tensors: Tensors
    shape: tuple[int, int]


@dataclass(frozen=True)
class Unit:
    """Modules whose linears read one value: q, k and v; gate and up."""

    parts: tuple[Part, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.module for part in self.parts))

    @property
    def num_weights(self) -> int:
        return sum(part.shape[0] * part.shape[1] for part in self.parts)


def units_of(graph: Graph) -> list[Unit]:
    """Of a graph whose linears stand alone, in order."""
    exprs = {n.output: n.op.expr for n in graph.nodes if isinstance(n.op, Weight)}
    found: dict[Value, dict[tuple[str, Tensors], tuple[int, int]]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Linear) and (expr := exprs.get(node.inputs[1])) is not None:
            rows, columns = expr.type.static_shape()
            parts = found.setdefault(node.inputs[0], {})
            key = node.loc, tuple(dict.fromkeys(source.name for source in sources(expr)))
            parts[key] = parts.get(key, (0, columns))[0] + rows, columns
    return [Unit(tuple(Part(*key, shape) for key, shape in parts.items())) for parts in found.values()]
