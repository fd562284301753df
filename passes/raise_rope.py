"""Rotary position embeddings out of the slices, negations and tables that HF's modules spell them with.

HF repeats the table of R/2 angles to R columns, then mixes x with a rotated copy of itself. The rules first push
arithmetic through the repetition, so that cos and sin act on R/2 columns, then recognise the rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.graph import Builder, Graph, Value
from llmc.ir.ops.nn import Rope, RopeStyle, RopeTable
from llmc.ir.ops.pointwise import Cast, Unary, UnaryFn
from llmc.ir.ops.shape import Concat, Expand, Slice, View
from llmc.ir.types import DType
from llmc.passes.pattern import Apply, Match, Number, Pattern, Var, add, mul, op, unary
from llmc.passes.rewrite import Refused, RuleLog, apply_rules, rule

X, C, S = Var("x"), Var("c"), Var("s")
P, F = Var("positions"), Var("inv_freq")


@rule("fn(concat(x, x)) => concat(fn(x), fn(x))", Apply("fn", Unary, (op(Concat, X, X, name="twice"),)))
def unary_of_repeat(m: Match, b: Builder) -> Value | None:
    y = b.add(m.nodes["fn"].op, m.values["x"])
    return b.add(m.nodes["twice"].op, y, y)


@rule("concat(x, x) * n => concat(x * n, x * n)", mul(op(Concat, X, X, name="twice"), Number("n")))
def scaled_repeat(m: Match, b: Builder) -> Value | None:
    x, number = m.values["x"], next(v for v in m.root.inputs if v.tensor.rank == 0)
    y = b.add(m.root.op, x, number)
    return b.add(m.nodes["twice"].op, y, y)


@rule(
    "fn(expand(view(x))) repeating elements => the same of fn(x)",
    Apply("fn", Unary, (op(View, op(Expand, op(View, X, name="inner"), name="expand"), name="outer"),)),
)
def unary_of_interleaved_repeat(m: Match, b: Builder) -> Value | None:
    y = b.add(m.nodes["fn"].op, m.values["x"])
    for name in ("inner", "expand", "outer"):
        y = b.add(m.nodes[name].op, y)
    return y


@rule(
    "(view of repeated x) * n => the same of x * n",
    mul(op(View, op(Expand, op(View, X, name="inner"), name="expand"), name="outer"), Number("n")),
)
def scaled_interleaved_repeat(m: Match, b: Builder) -> Value | None:
    number = next(v for v in m.root.inputs if v.tensor.rank == 0)
    y = b.add(m.root.op, m.values["x"], number)
    for name in ("inner", "expand", "outer"):
        y = b.add(m.nodes[name].op, y)
    return y


def _angles() -> Pattern:
    return mul(op(View, op(Cast, P, name="cast")), F)


@rule("cos(positions * inv_freq) => rope_table.cos", unary(UnaryFn.COS, _angles()))
def cos_table(m: Match, b: Builder) -> Value | Refused | None:
    return _table(m, b, 0)


@rule("sin(positions * inv_freq) => rope_table.sin", unary(UnaryFn.SIN, _angles()))
def sin_table(m: Match, b: Builder) -> Value | Refused | None:
    return _table(m, b, 1)


def _table(m: Match, b: Builder, which: int) -> Value | Refused | None:
    positions, inv_freq = m.values["positions"], m.values["inv_freq"]
    ranks = positions.tensor.rank, inv_freq.tensor.rank
    if ranks != (1, 1) or (positions.tensor.dtype, inv_freq.tensor.dtype) != (DType.I32, DType.F32):
        return Refused(f"{positions.type} times {inv_freq.type} are not positions [T] times frequencies [R/2]")
    if m.root.output.tensor.shape != (positions.tensor.shape[0], inv_freq.tensor.shape[0]):
        return Refused(f"the product is {m.root.output.type}, a table would be [T, R/2]")
    return b.add_multi(RopeTable(), positions, inv_freq)[which]


def _not_tables(x: Value, c: Value, s: Value) -> Refused | None:
    if x.tensor.rank != 3:
        return Refused(f"{x.type} is not [T, heads, D]")
    if c.tensor.rank != 2 or c.type != s.type or c.tensor.shape[0] != x.tensor.shape[0]:
        return Refused(f"the tables are {c.type} and {s.type}, not [T, R/2]")
    return None


def _is_doubled(m: Match, name: str, table: Value) -> bool:
    """Is the table matched under `name` repeated along its last axis, one row a token?"""
    rows, half = table.tensor.shape
    return m.op(name, Concat).axis == 1 and m.op(f"{name}_view", View).shape == (rows, 1, half * 2)


def _rotated_half(x: Pattern) -> Pattern:
    return op(Concat, unary(UnaryFn.NEG, op(Slice, x, name="high")), op(Slice, x, name="low"), name="halves")


def _repeated(table: Pattern, name: str) -> Pattern:
    return op(View, op(Concat, table, table, name=name), name=f"{name}_view")


@rule(
    "x * [c, c] + [-x2, x1] * [s, s] => rope(x, c, s)",
    add(mul(X, _repeated(C, "cc"), "xc"), mul(_rotated_half(X), _repeated(S, "ss"), "xs")),
)
def half_rope(m: Match, b: Builder) -> Value | Refused:
    x, c, s = m.values["x"], m.values["c"], m.values["s"]
    width, half = x.tensor.shape[-1], c.tensor.shape[-1]
    if bad := _not_tables(x, c, s):
        return bad
    if m.op("halves", Concat).axis != 2 or not all(_is_doubled(m, *of) for of in (("cc", c), ("ss", s))):
        return Refused(f"{c.type} or the halves of {x.type} are joined along another axis than the last")
    if m.op("low", Slice) != Slice(2, 0, int(str(half))) or m.op("high", Slice) != Slice(
        2, int(str(half)), int(str(width))
    ):
        return Refused(f"the halves of {x.type} are not those that a table of {half} rotates")
    return b.add(Rope(RopeStyle.HALF), x, c, s)


def _interleaved(table: Pattern, name: str) -> Pattern:
    inner = op(View, table, name=f"{name}_inner")
    return op(View, op(View, op(Expand, inner, name=f"{name}_expand"), name=f"{name}_flat"), name=f"{name}_view")


def _rotated_pairs(x: Pattern) -> Pattern:
    odd = op(View, unary(UnaryFn.NEG, op(Slice, x, name="odd")), name="odd_view")
    even = op(View, op(Slice, x, name="even"), name="even_view")
    return op(View, op(Concat, odd, even, name="stack"), name="pairs")


def _is_doubled_in_pairs(m: Match, name: str, table: Value, width: int) -> bool:
    """Does each element of the table matched under `name` stand twice, one row a token?"""
    rows, half = table.tensor.shape
    inner, repeats = m.op(f"{name}_inner", View).shape, m.op(f"{name}_expand", Expand).shape
    side_by_side = (inner[0], *inner[-2:]) == (rows, half, 1) and repeats == (*inner[:-1], 2)
    return side_by_side and half * 2 == width and m.op(f"{name}_view", View).shape == (rows, 1, width)


def _are_pairs(m: Match, x: Value, half: int) -> bool:
    """Are the odd and even elements of x stacked along an axis of their own, the last?"""
    column = (*x.tensor.shape[:-1], half, 1)
    views = {m.op(name, View).shape for name in ("odd_view", "even_view")}
    return views == {column} and m.op("stack", Concat).axis == 3 and m.op("pairs", View).shape == x.tensor.shape


@rule(
    "x * [c0, c0, c1, ...] + [-x1, x0, ...] * [s0, s0, ...] => rope(x, c, s) of pairs",
    *(
        add(mul(X, wrap(C, "cc"), "xc"), mul(_rotated_pairs(X), wrap(S, "ss"), "xs"))
        for wrap in (
            _interleaved,
            lambda t, n: op(View, op(Expand, op(View, t, name=f"{n}_inner"), name=f"{n}_expand"), name=f"{n}_view"),
        )
    ),
)
def interleaved_rope(m: Match, b: Builder) -> Value | Refused:
    x, c, s = m.values["x"], m.values["c"], m.values["s"]
    width = x.tensor.shape[-1]
    if bad := _not_tables(x, c, s):
        return bad
    if (
        not isinstance(width, int)
        or m.op("even", Slice) != Slice(2, 0, width, 2)
        or m.op("odd", Slice) != Slice(2, 1, width, 2)
    ):
        return Refused(f"the slices of {x.type} are not its even and odd elements")
    if not all(_is_doubled_in_pairs(m, *of, width) for of in (("cc", c), ("ss", s))):
        return Refused(f"the table {c.type} is not repeated twice to {width}")
    if not _are_pairs(m, x, width // 2):
        return Refused(f"the odd and even elements of {x.type} are not put side by side")
    return b.add(Rope(RopeStyle.INTERLEAVED), x, c, s)


@rule(
    "[rope(x[:R]), x[R:]] => rope(x) of the first R dims",
    op(Concat, op(Rope, op(Slice, X, name="turned"), C, S, name="rope"), op(Slice, X, name="passed"), name="whole"),
)
def partial_rope(m: Match, b: Builder) -> Value | Refused:
    x = m.values["x"]
    turned, passed = m.op("turned", Slice), m.op("passed", Slice)
    if (turned.start, turned.step, passed.step) != (0, 1, 1) or turned.stop != passed.start:
        return Refused("the parts are not a head's first dims and its rest")
    last = x.tensor.rank - 1
    if passed.stop != x.tensor.shape[-1] or (turned.axis, passed.axis, m.op("whole", Concat).axis) != (last,) * 3:
        return Refused("the parts do not make a whole head")
    return b.add(m.nodes["rope"].op, x, m.values["c"], m.values["s"])


RULES = [
    *unary_of_repeat,
    *scaled_repeat,
    *unary_of_interleaved_repeat,
    *scaled_interleaved_repeat,
    *cos_table,
    *sin_table,
    *half_rope,
    *interleaved_rope,
    *partial_rope,
]


@dataclass(frozen=True)
class RaiseRope:
    """RopeTable and Rope nodes from trigonometry and rotated copies."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return apply_rules(graph, RULES, log)
