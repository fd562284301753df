"""Pointwise cones: what can be computed on the results of a linear before they leave the registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmc.ir.graph import Builder, Graph, Node, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.types import DType, TensorType

OPERANDS = (DType.BF16, DType.F16)
OPERAND_PAD = 32  # of CPU operands, whose epilogues do not pad rows
POINTWISE = (Unary, Binary, Cast, Where)


@dataclass(frozen=True)
class Cone:
    """Pointwise nodes, in order, that need only the seeds and values that do not depend on them; one value leaves."""

    seeds: tuple[Value, ...]
    nodes: tuple[Node, ...]
    exit: Value

    def body(
        self, name: str, results: Sequence[Value], scalars: dict[Value, Scalar]
    ) -> tuple[Graph, tuple[Value, ...]]:
        """The cone as a graph of (results in place of the seeds, extras), and the extras it reads from outside."""
        b = Builder()
        new_of = dict(zip(self.seeds, results, strict=True))
        extras: dict[Value, Value] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value in new_of:
                    continue
                if value in scalars:
                    new_of[value] = b.add(scalars[value])
                else:
                    new_of[value] = extras[value] = Value(value.type, value.name)
            new_of[node.output] = b.add(node.op, *(new_of[v] for v in node.inputs), loc=node.loc)
        return Graph(name, (*results, *extras.values()), (new_of[self.exit],), tuple(b.nodes)), tuple(extras)


def cones(
    graph: Graph, users: dict[Value, list[Node]], seeds: tuple[Value, ...], operand_pad: int = OPERAND_PAD
) -> list[Cone]:
    """All cones of these values, smallest first. With one seed the first is empty: the seed itself leaves.

    `operand_pad`: rounded rows leave only where their width is a multiple of it.
    """
    shape = seeds[0].tensor.shape
    inside: list[Node] = []
    member = set(seeds)
    tainted: set[Value] = set()
    found = _closed(graph, users, seeds, inside)
    for node in _after(graph, users, seeds):
        if not any(v in member or v in tainted for v in node.inputs):
            continue
        if _fits(node, shape, member, operand_pad) and not any(v in tainted for v in node.inputs):
            inside.append(node)
            member.add(node.output)
            found += _closed(graph, users, seeds, inside)
        else:
            tainted.update(node.outputs)
    return found


def _after(graph: Graph, users: dict[Value, list[Node]], seeds: tuple[Value, ...]) -> list[Node]:
    first = min((graph.nodes.index(u) for s in seeds for u in users.get(s, [])), default=len(graph.nodes))
    return list(graph.nodes[first : first + 64])


def _fits(node: Node, shape: tuple[object, ...], member: set[Value], operand_pad: int) -> bool:
    """Can registers hold what the node reads and gives: float32, booleans made of it, and at last an operand?"""
    if not isinstance(node.op, POINTWISE) or node.output.tensor.shape != shape:
        return False
    width = shape[-1]
    if isinstance(node.op, Cast) and (
        node.op.dtype not in OPERANDS or not isinstance(width, int) or width % operand_pad
    ):
        return False
    allowed = (shape, shape[-1:], ())
    return all(isinstance(v.type, TensorType) and v.type.shape in allowed for v in node.inputs) and all(
        v.tensor.dtype is DType.F32 or (v.tensor.dtype is DType.BOOL and v in member) for v in node.inputs
    )


def _closed(graph: Graph, users: dict[Value, list[Node]], seeds: tuple[Value, ...], inside: list[Node]) -> list[Cone]:
    values = [*seeds, *(n.output for n in inside)]
    leaving = [v for v in values if v in graph.outputs or any(u not in inside for u in users.get(v, []))]
    if len(leaving) != 1 or leaving[0].tensor.dtype is DType.BOOL:  # no kernel stores booleans
        return []
    return [Cone(seeds, tuple(inside), leaving[0])]
