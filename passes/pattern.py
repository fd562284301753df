"""Patterns over a graph: small trees of ops, built by functions that read like the expression they match.

`mul(X, rsqrt(add(mean(mul(X, X)), Number("eps"))))` matches backwards from a `mul` node. The matcher tries both orders
of commutative ops, and a Var that stands twice must be the same value twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from llmc.ir.graph import Node, Op, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Unary, UnaryFn
from llmc.ir.ops.reduce import Reduce, ReduceFn

OpT = TypeVar("OpT", bound=Op)


@dataclass(frozen=True)
class Var:
    """Any value."""

    name: str


@dataclass(frozen=True)
class Number:
    """A scalar constant; equal to `value` when one is given."""

    name: str
    value: float | None = None


@dataclass(frozen=True)
class Apply:
    """A node with one output whose op is of `kind` (and satisfies `accepts`), bound under `name`."""

    name: str
    kind: type[Op]
    inputs: tuple[Pattern, ...]
    accepts: Callable[[Op], bool] = lambda op: True
    commutes: bool = False


Pattern = Var | Number | Apply


@dataclass(frozen=True)
class Match:
    """What a pattern matched: nodes of Apply, values of Var, numbers of Number, by their names."""

    root: Node
    nodes: Mapping[str, Node]
    values: Mapping[str, Value]
    numbers: Mapping[str, float]

    def op(self, name: str, kind: type[OpT]) -> OpT:
        """The op matched under a name, typed."""
        found = self.nodes[name].op
        assert isinstance(found, kind)
        return found


Binding = dict[str, Node | Value | float]


def match(pattern: Apply, root: Node, producers: Mapping[Value, Node]) -> Match | None:
    """The first way in which the pattern matches at `root`, or None."""
    for found in _match_node(pattern, root, producers, {}):
        return Match(
            root,
            {k: v for k, v in found.items() if isinstance(v, Node)},
            {k: v for k, v in found.items() if isinstance(v, Value)},
            {k: v for k, v in found.items() if isinstance(v, float)},
        )
    return None


def _match_node(pattern: Apply, node: Node, producers: Mapping[Value, Node], bound: Binding) -> Iterator[Binding]:
    if not isinstance(node.op, pattern.kind) or len(node.outputs) != 1 or not pattern.accepts(node.op):
        return
    if len(node.inputs) != len(pattern.inputs):
        return
    orders = [node.inputs]
    if pattern.commutes:
        orders.append(node.inputs[::-1])
    for order in orders:
        yield from _match_all(pattern.inputs, order, producers, bound | {pattern.name: node})


def _match_all(
    patterns: tuple[Pattern, ...], values: tuple[Value, ...], producers: Mapping[Value, Node], bound: Binding
) -> Iterator[Binding]:
    if not patterns:
        yield bound
        return
    for found in _match_value(patterns[0], values[0], producers, bound):
        yield from _match_all(patterns[1:], values[1:], producers, found)


def _match_value(pattern: Pattern, value: Value, producers: Mapping[Value, Node], bound: Binding) -> Iterator[Binding]:
    node = producers.get(value)
    match pattern:
        case Var(name):
            if bound.get(name, value) is value:
                yield bound | {name: value}
        case Number(name, wanted):
            if node is None or not isinstance(node.op, Scalar):
                return
            number = float(node.op.value)
            if wanted in (None, number) and bound.get(name, number) == number:
                yield bound | {name: number}
        case Apply():
            if node is not None:
                yield from _match_node(pattern, node, producers, bound)


def unary(fn: UnaryFn, x: Pattern, name: str = "") -> Apply:
    return Apply(name or fn.value, Unary, (x,), lambda op: isinstance(op, Unary) and op.fn is fn)


def binary(fn: BinaryFn, a: Pattern, b: Pattern, name: str = "") -> Apply:
    def accepts(op: Op) -> bool:
        return isinstance(op, Binary) and op.fn is fn

    return Apply(name or fn.value, Binary, (a, b), accepts, fn.commutes)


def add(a: Pattern, b: Pattern, name: str = "") -> Apply:
    return binary(BinaryFn.ADD, a, b, name)


def sub(a: Pattern, b: Pattern, name: str = "") -> Apply:
    return binary(BinaryFn.SUB, a, b, name)


def mul(a: Pattern, b: Pattern, name: str = "") -> Apply:
    return binary(BinaryFn.MUL, a, b, name)


def div(a: Pattern, b: Pattern, name: str = "") -> Apply:
    return binary(BinaryFn.DIV, a, b, name)


def mean_last(x: Pattern, name: str = "mean") -> Apply:
    """The mean over an axis; the rule checks that it is the last."""
    return Apply(name, Reduce, (x,), lambda op: isinstance(op, Reduce) and op.fn is ReduceFn.MEAN)


def op(kind: type[Op], *inputs: Pattern, name: str = "") -> Apply:
    """Any op of a kind with exactly these inputs."""
    return Apply(name or kind.mnemonic(), kind, inputs)
