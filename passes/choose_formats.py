"""Which scheme each linear is multiplied in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.constant import Weight, WeightExpr
from llmc.ir.ops.reduce import GatedLinear, Linear
from llmc.passes.rewrite import RuleLog
from llmc.passes.stored_numbers import stored_numbers


@dataclass(frozen=True)
class At:
    """The scheme of linears of some modules. `module`: a pattern of their paths, as `*.mlp.*` or `lm_head`."""

    module: str
    scheme: Scheme

    def names(self, module: str) -> bool:
        return fnmatchcase(module, self.module)


@dataclass(frozen=True)
class ChooseFormats:
    """linear => linear in a scheme: that of the first of `others` that names its module; else, with `as_stored`, the
    numbers that its weight is stored in; else `head` for the last of all, whose rows are the vocabulary; else
    `scheme`."""

    scheme: Scheme
    others: tuple[At, ...] = ()
    as_stored: bool = False
    head: Scheme | None = None

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        exprs = {n.output: n.op.expr for n in graph.nodes if isinstance(n.op, Weight)}
        head = next((n for n in reversed(graph.nodes) if isinstance(n.op, Linear)), None)
        return replace(graph, nodes=tuple(self._chosen(node, exprs, node is head) for node in graph.nodes))

    def _chosen(self, node: Node, exprs: dict[Value, WeightExpr], is_head: bool) -> Node:
        if not isinstance(node.op, Linear):
            return node
        usual = (self.head if is_head else None) or self.scheme
        return replace(node, op=Linear(self._named(node.loc) or self._stored(exprs.get(node.inputs[1])) or usual))

    def _named(self, module: str) -> Scheme | None:
        return next((at.scheme for at in self.others if at.names(module)), None)

    def _stored(self, weight: WeightExpr | None) -> Scheme | None:
        numbers = stored_numbers(weight) if self.as_stored and weight is not None else None
        return None if numbers is None else Scheme.of(numbers)


def scheme_of(node: Node) -> Scheme:
    """Of a linear. IRError where none has been chosen."""
    assert isinstance(node.op, Linear | GatedLinear)
    if node.op.scheme is None:
        raise IRError(f"linear at {node.loc or 'no module'} has no scheme: choose-formats gives it one")
    return node.op.scheme
