"""Captured graphs without matrices: every row-wise op, at widths with tails, over the layouts a row can have."""

from __future__ import annotations

from collections.abc import Callable

from llmc.ir.graph import Graph, Value
from llmc.ir.ops.attention import Attention
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.nn import LayerNorm
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.ops.reduce import Linear, Reduce, ReduceFn, Softmax
from llmc.ir.ops.shape import Concat, Expand, Permute
from llmc.ir.types import DType

from .captured import EDGES, ENDS, Captured


class Rows(Captured):
    """Collects results [B, S, n], which are the graph's logits side by side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.results: list[Value] = []
        self.names: list[str] = []

    def result(self, name: str, x: Value) -> None:
        if x.tensor.dtype is not DType.F32:
            x = self.add(Cast(DType.F32), x)
        if x.tensor.rank != 3:
            size = 1
            for dim in x.tensor.shape[2:]:
                size *= int(str(dim))
            x = self.view(x, self.batch, self.seq, size)
        self.names += [name] * self.width(x)
        self.results.append(x)

    def finish(self) -> Graph:
        return self.graph(self.add(Concat(2), *self.results))

    def bools(self, fn: BinaryFn, a: Value, b: Value | float) -> Value:
        return self.binary(fn, a, b)


def sections() -> list[Rows]:
    """Graphs that together hold every op; columns of their logits are named in `names`."""
    made = []
    for fill in (
        _unary,
        _binary,
        _powers,
        _masks,
        _integers,
        *(_of_width(w) for w in (1, 17, 48)),
        _permuted,
        _sliced,
        _turned,
    ):
        c = Rows()
        fill(c)
        made.append(c)
    return made


def _edges(c: Rows) -> tuple[Value, Value, Value]:
    edge = c.embed("edges.embed", len(EDGES), len(EDGES))  # row i is EDGES rotated by i
    turned = c.add(Concat(2), c.cut(edge, 5, 19), c.cut(edge, 0, 5))
    return edge, turned, c.embed("plain.embed", len(EDGES), len(EDGES))


def _unary(c: Rows) -> None:
    edge, *_ = _edges(c)
    for fn in UnaryFn:
        if fn is not UnaryFn.NOT:
            c.result(fn.value, c.unary(fn, edge))


def _binary(c: Rows) -> None:
    edge, turned, _ = _edges(c)
    for fn in BinaryFn:
        if fn not in (BinaryFn.AND, BinaryFn.OR):
            c.result(fn.value, c.add(Binary(fn), edge, turned))
            c.result(f"{fn.value} number", c.add(Binary(fn), edge, c.scalar(3.0)))
            c.result(f"number {fn.value}", c.add(Binary(fn), c.scalar(-2.0), edge))


def _powers(c: Rows) -> None:
    """Every edge to the power of every edge, and of whole numbers at the end of their range."""
    edge, *_ = _edges(c)
    ends = c.weight("ends.edges", len(ENDS))
    base = c.view(edge, c.batch, c.seq, len(EDGES), 1)
    c.result("pow", c.binary(BinaryFn.POW, base, c.view(ends, 1, 1, 1, len(ENDS))))


def _masks(c: Rows) -> None:
    edge, turned, plain = _edges(c)
    a, b = c.bools(BinaryFn.GT, edge, turned), c.bools(BinaryFn.LT, plain, 0.2)
    for fn in (BinaryFn.AND, BinaryFn.OR, BinaryFn.EQ, BinaryFn.NE):
        c.result(f"bool {fn.value}", c.add(Binary(fn), a, b))
    c.result("not", c.add(Unary(UnaryFn.NOT), a))
    c.result("to bool", c.add(Cast(DType.BOOL), edge))
    c.result("where", c.add(Where(), a, edge, plain))
    c.result("where numbers", c.add(Where(), b, c.scalar(1.5), c.scalar(-2.5)))
    c.result("where bool", c.add(Where(), a, b, c.add(Unary(UnaryFn.NOT), b)))
    true = c.add(Scalar(1.0, DType.BOOL))
    c.result("and true", c.add(Binary(BinaryFn.AND), a, true))
    first = c.view(c.cut(b, 0, 6), c.batch, c.seq, 2, 3)  # a mask that is moved before it is used
    turned_mask = c.add(Permute((0, 1, 3, 2)), first)
    x = c.view(c.cut(plain, 0, 6), c.batch, c.seq, 3, 2)
    c.result("moved mask", c.add(Where(), turned_mask, x, c.scalar(0.0)))
    per_row = c.bools(BinaryFn.GT, c.mean(plain), 0.0)
    c.result("mask of the row", c.add(Where(), per_row, plain, c.unary(UnaryFn.NEG, plain)))
    c.result("concat masks", c.add(Concat(2), b, a))


def _integers(c: Rows) -> None:
    *_, plain = _edges(c)
    one = c.add(Scalar(1.0, DType.I64))
    p = c.add(Binary(BinaryFn.ADD), c.positions, one)
    q = c.add(Binary(BinaryFn.MUL), p, c.add(Binary(BinaryFn.SUB), c.ids, c.add(Scalar(40.0, DType.I64))))
    column = c.view(q, c.batch, c.seq, 1)
    as_float = c.add(Cast(DType.F32), column)
    c.result("integers", as_float)
    c.result("integer times row", c.mul(plain, as_float))
    c.result("integer and number", c.binary(BinaryFn.MAXIMUM, as_float, 7.0))
    even = c.add(Binary(BinaryFn.LT), column, c.view(p, c.batch, c.seq, 1))
    c.result("compared integers", c.add(Where(), even, plain, c.scalar(1.0)))
    c.result("integer to bool", c.add(Cast(DType.BOOL), column))
    c.result("embedding of integers", c.embed("places.embed", 200, 7, p))


def _of_width(w: int) -> Callable[[Rows], None]:
    return lambda c: _width(c, w)


def _width(c: Rows, w: int) -> None:
    x = c.embed(f"w{w}.embed", 19, w)
    row, name = c.weight(f"row{w}", w), f"of {w}"
    c.result("row " + name, c.mul(c.plus(x, row), c.weight(f"one{w}", 1)))
    c.result("weight [1, 1, w] " + name, c.plus(x, c.weight(f"lead{w}", 1, 1, w)))
    c.result("softmax " + name, c.add(Softmax(), x))
    for fn in ReduceFn:
        c.result(f"{fn.value} " + name, c.add(Reduce(fn, 2), x))
    c.result("rms norm " + name, c.rms_norm(x, f"rms{w}norm"))
    c.result("layer norm " + name, c.layer_norm(c.plus(x, 4.0), f"ln{w}norm"))
    c.result("bare layer norm " + name, c.add(LayerNorm(1e-5, False, False), x))
    c.result("layer norm with bias " + name, c.add(LayerNorm(1e-5, False, True), x, row))
    shared = c.unary(UnaryFn.EXP, x)  # used twice: it gets a row of its own
    c.result("shared " + name, c.binary(BinaryFn.DIV, shared, c.plus(c.mul(shared, shared), 1.0)))


def _permuted(c: Rows) -> None:
    x = c.embed("lay.embed", 19, 60)
    cube = c.view(x, c.batch, c.seq, 3, 4, 5)
    for perm in ((0, 1, 3, 2, 4), (0, 1, 4, 3, 2)):
        moved = c.add(Permute(perm), cube)
        c.result(f"permute {perm}", moved)
        c.result(f"permute {perm} and exp", c.unary(UnaryFn.EXP, moved))
        for axis in (2, 3, 4):
            c.result(f"sum axis {axis} of {perm}", c.add(Reduce(ReduceFn.SUM, axis), moved))
            c.result(f"min axis {axis} of {perm}", c.add(Reduce(ReduceFn.MIN, axis), moved))
            c.result(f"concat {axis} of {perm}", c.add(Concat(axis), moved, c.unary(UnaryFn.NEG, moved)))
        c.result(f"softmax of {perm}", c.add(Softmax(), moved))
        c.result(f"norm of {perm}", c.add(LayerNorm(1e-5, False, False), moved))


def _sliced(c: Rows) -> None:
    x = c.embed("lay.embed", 19, 60)
    for start, stop, step in ((0, 60, 2), (1, 60, 7), (13, 31, 1), (59, 60, 1)):
        part = c.cut(x, start, stop, step)
        c.result(f"slice {start}:{stop}:{step}", part)
        c.result(f"slice {start}:{stop}:{step} plus", c.plus(part, c.mul(part, part)))
    column = c.view(c.cut(x, 0, 4), c.batch, c.seq, 4, 1)
    wide = c.add(Expand((c.batch, c.seq, 4, 15)), column)
    c.result("expand", wide)
    c.result("expand times", c.mul(wide, c.view(x, c.batch, c.seq, 4, 15)))
    c.result("outer", c.mul(column, c.view(c.cut(x, 4, 24), c.batch, c.seq, 1, 20)))
    constant = c.add(Expand((c.batch, c.seq, 3)), c.weight("constant", 3))
    zeros = c.add(Expand((c.batch, c.seq, 2)), c.scalar(0.25))
    c.result("constants beside", c.add(Concat(2), constant, c.cut(x, 7, 8), zeros))


def _turned(c: Rows) -> None:
    x = c.embed("lay.embed", 19, 60)
    for style in (False, True):
        for rotary in (2, 10, 12):
            heads = c.heads(x, 5)
            c.result(
                f"rope {style} {rotary}",
                c.add(Permute((0, 2, 1, 3)), c.rope(heads, c.rope_tables(rotary, style), style)),
            )


def crossing() -> Graph:
    """Masks and integers that outlive a linear, and integers of the sampled rows."""
    c = Captured()
    x = c.embed("table.embed", 90, 32)
    mask = c.binary(BinaryFn.GT, x, 0.1)
    place = c.add(Binary(BinaryFn.ADD), c.positions, c.add(Scalar(2.0, DType.I64)))
    x = c.plus(x, c.embed("places.embed", 200, 32, place))
    y = c.linear(x, "mix", 32)
    x = c.add(Where(), mask, c.unary(UnaryFn.TANH, y), x)
    z = c.linear(x, "rich", 32, bias=True)  # an epilogue of rows, numbers, masks and a residual
    above = c.add(Unary(UnaryFn.NOT), c.binary(BinaryFn.LE, z, c.weight("threshold", 32)))
    low = c.binary(BinaryFn.MINIMUM, c.mul(z, c.weight("gain", 1)), 0.75)
    x = c.plus(c.add(Where(), above, c.unary(UnaryFn.GELU, z), low), x)
    heads = c.heads(x, 2)
    x = c.plus(x, c.attend(heads, heads, heads, Attention(0.25)))
    factor = c.view(c.add(Cast(DType.F32), place), c.batch, c.seq, 1)
    x = c.binary(BinaryFn.DIV, c.rms_norm(x, "norm"), factor)
    late = c.view(c.add(Cast(DType.F32), c.positions), c.batch, c.seq, 1)
    x = c.add(Where(), mask, x, c.binary(BinaryFn.MINIMUM, x, late))
    return c.graph(c.add(Linear(), x, c.weight("table.embed", 90, 32)))
