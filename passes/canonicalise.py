"""One way to write each thing, so that later rules need one pattern: constants folded, casts and powers simplified."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmc.ir import reference
from llmc.ir.graph import Builder, Graph, Node, Op, Value, eliminate_dead_code
from llmc.ir.ops import constant
from llmc.ir.ops.constant import Literal, Scalar, Weight, WeightExpr
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.ops.reduce import MatMul, Reduce, Softmax
from llmc.ir.ops.shape import Arange, Concat, Expand, Permute, Slice, View
from llmc.passes.pattern import Match, Number, Var, binary, div, mul, op, unary
from llmc.passes.rewrite import Refused, RuleLog, apply_rules, rule

X, Y = Var("x"), Var("y")


@rule("cast(x) => x of the same dtype", op(Cast, X))
def drop_cast(m: Match, b: Builder) -> Value | None:
    x = m.values["x"]
    return x if x.type == m.root.output.type else None


@rule("cast(cast(x)) => cast(x)", op(Cast, op(Cast, X, name="inner")))
def join_casts(m: Match, b: Builder) -> Value | Refused:
    start, inner = m.values["x"].tensor.dtype, m.op("inner", Cast).dtype
    if not inner.holds(start):
        return Refused(f"the cast from {start.value} to {inner.value} in between loses values")
    return b.add(m.root.op, m.values["x"])


@rule("pow(x, 2) => x * x; pow(x, -0.5) => rsqrt(x); pow(x, 0.5) => sqrt(x)", binary(BinaryFn.POW, X, Number("n")))
def small_power(m: Match, b: Builder) -> Value | None:
    x, power = m.values["x"], m.numbers["n"]
    if power == 2:
        return b.add(Binary(BinaryFn.MUL), x, x)
    if power == 3:
        return b.add(Binary(BinaryFn.MUL), b.add(Binary(BinaryFn.MUL), x, x), x)
    fn = {-0.5: UnaryFn.RSQRT, 0.5: UnaryFn.SQRT, -1: UnaryFn.RECIPROCAL}.get(power)
    return None if fn is None else b.add(Unary(fn), x)


@rule(
    "1 / sqrt(x) => rsqrt(x)",
    unary(UnaryFn.RECIPROCAL, unary(UnaryFn.SQRT, X)),
    div(Number("one", 1.0), unary(UnaryFn.SQRT, X)),
)
def reciprocal_root(m: Match, b: Builder) -> Value:
    return b.add(Unary(UnaryFn.RSQRT), m.values["x"])


@rule("x / sqrt(y) => x * rsqrt(y)", div(X, unary(UnaryFn.SQRT, Y)))
def divide_by_root(m: Match, b: Builder) -> Value:
    return b.add(Binary(BinaryFn.MUL), m.values["x"], b.add(Unary(UnaryFn.RSQRT), m.values["y"]))


@rule(
    "x * 1 => x; x / 1 => x; x + 0 => x; x - 0 => x",
    mul(X, Number("n", 1.0)),
    div(X, Number("n", 1.0)),
    binary(BinaryFn.ADD, X, Number("n", 0.0)),
    binary(BinaryFn.SUB, X, Number("n", 0.0)),
)
def neutral(m: Match, b: Builder) -> Value | None:
    x = m.values["x"]
    return x if x.type == m.root.output.type else None


@rule("cast(view(x)) => view(cast(x)) of integers", op(Cast, op(View, X, name="view")))
def cast_before_view(m: Match, b: Builder) -> Value | None:
    if m.values["x"].tensor.dtype.is_float:
        return None  # casts of floats stay next to the linear whose operand they make
    return b.add(m.nodes["view"].op, b.add(m.root.op, m.values["x"]))


@rule("view(view(x)) => view(x)", op(View, op(View, X, name="inner")))
def join_views(m: Match, b: Builder) -> Value:
    return b.add(m.root.op, m.values["x"])


@rule(
    "view, expand, slice, permute of x that change nothing => x",
    op(View, X),
    op(Expand, X),
    op(Slice, X),
    op(Permute, X),
)
def drop_move(m: Match, b: Builder) -> Value | None:
    x = m.values["x"]
    if isinstance(m.root.op, Permute) and m.root.op.perm != tuple(range(x.tensor.rank)):
        return None
    return x if x.type == m.root.output.type else None


@rule("permute(permute(x)) => permute(x)", op(Permute, op(Permute, X, name="inner")))
def join_permutes(m: Match, b: Builder) -> Value:
    outer, inner = m.op("permute", Permute).perm, m.op("inner", Permute).perm
    return b.add(Permute(tuple(inner[p] for p in outer)), m.values["x"])


@rule("matmul of an inner dim of 1 => mul", op(MatMul, X, Y))
def outer_product(m: Match, b: Builder) -> Value | None:
    x, y = m.values["x"], m.values["y"]
    if x.tensor.shape[-1] != 1:
        return None
    return b.add(Binary(BinaryFn.MUL), x, y)


RULES = [
    *drop_cast,
    *join_casts,
    *cast_before_view,
    *small_power,
    *reciprocal_root,
    *divide_by_root,
    *neutral,
    *join_views,
    *drop_move,
    *join_permutes,
    *outer_product,
]


FOLDED = (Arange, Binary, Cast, Concat, Expand, MatMul, Permute, Reduce, Slice, Softmax, Unary, View, Where)


@dataclass(frozen=True)
class Canonicalise:
    """Fold constants, merge equal nodes, then apply the rules above until nothing changes."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return merge_equal(apply_rules(fold_constants(graph), RULES, log))


def fold_constants(graph: Graph) -> Graph:
    """Ops of static shapes whose inputs are all constants become part of a weight's expression, or a scalar."""
    exprs: dict[Value, WeightExpr] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        match node.op:
            case Weight(expr):
                exprs[node.output] = expr
            case Scalar(value, dtype):
                exprs[node.output] = Literal(value, dtype)
            case op if isinstance(op, FOLDED) and all(v in exprs for v in node.inputs):
                node = _folded(node, tuple(exprs[v] for v in node.inputs), exprs)
        nodes.append(node)
    return eliminate_dead_code(Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes)))


def _folded(node: Node, args: tuple[WeightExpr, ...], exprs: dict[Value, WeightExpr]) -> Node:
    out = node.output.tensor
    if not all(isinstance(d, int) for d in out.shape):
        return node
    expr: WeightExpr = constant.Apply(node.op, args)
    op: Op = Weight(expr)
    if out.rank == 0 and all(isinstance(a, Literal) for a in args):  # a number, which patterns may ask for
        value = float(reference.apply_op(node.op, [reference.constant(a) for a in args if isinstance(a, Literal)]))
        expr, op = Literal(value, out.dtype), Scalar(value, out.dtype)
    exprs[node.output] = expr
    return Node(op, (), node.outputs, node.loc)


def merge_equal(graph: Graph) -> Graph:
    """Nodes with equal ops and inputs become one (common subexpressions)."""
    seen: dict[tuple[Op, float, tuple[Value, ...]], Node] = {}
    new_of: dict[Value, Value] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(new_of.get(v, v) for v in node.inputs)
        # zeros of two signs are equal as numbers, not as constants
        key = (node.op, math.copysign(1, node.op.value) if isinstance(node.op, Scalar) else 0, inputs)
        first = seen.get(key)
        if first is None:
            first = Node(node.op, inputs, node.outputs, node.loc)
            seen[key] = first
            nodes.append(first)
        else:
            new_of.update(zip(node.outputs, first.outputs, strict=True))
    outputs = tuple(new_of.get(v, v) for v in graph.outputs)
    return eliminate_dead_code(Graph(graph.name, graph.inputs, outputs, tuple(nodes)))
