"""Random captured models: layers that no architecture has, of everything that token graphs may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from llmc.ir.graph import Graph, Value
from llmc.ir.ops.attention import Attention, Mask
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.ops.reduce import Linear, Reduce, ReduceFn, Softmax
from llmc.ir.ops.shape import Concat, Expand, Permute
from llmc.ir.types import DType

from .captured import Captured

TAME = (
    UnaryFn.NEG,
    UnaryFn.ABS,
    UnaryFn.TANH,
    UnaryFn.SIGMOID,
    UnaryFn.SILU,
    UnaryFn.GELU,
    UnaryFn.GELU_TANH,
    UnaryFn.RELU,
    UnaryFn.ERF,
    UnaryFn.SIN,
    UnaryFn.COS,
    UnaryFn.SOFTPLUS,
)
WIDTHS = (6, 8, 24, 32, 48)


T = TypeVar("T")


class Choices(Protocol):
    """Where random decisions come from."""

    def pick(self, choices: Sequence[T]) -> T: ...


class Drawn:
    """Decisions that hypothesis makes, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def pick(self, choices: Sequence[T]) -> T:
        return self.draw(st.sampled_from(choices))


class Seeded:
    """The same decisions every time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)


class Model(Captured):
    """A captured graph that grows by random layers."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        self.count = 0
        self.stem = ""
        self.tables: dict[tuple[int, bool], tuple[Value, Value]] = {}
        self.pool: list[Value] = []

    def pick(self, *choices: T) -> T:
        return self.choices.pick(choices)

    def flag(self) -> bool:
        return self.pick(False, True)

    def name(self) -> str:
        self.count += 1
        return f"{self.stem}w{self.count}"

    def other(self, x: Value) -> Value:
        """An earlier value of the same type, or a constant that broadcasts to it."""
        same = [v for v in self.pool if v.type == x.type]
        kind = self.pick(0, 1, 2, 3, 4, 5)
        if kind == 0:
            return self.scalar(self.pick(0.5, 1.0, 2.0, -1.0, 0.0, 0.125))
        if kind == 1:
            return self.weight(self.name(), self.width(x))
        if kind == 2:
            return self.weight(self.name(), 1, 1, self.width(x))
        if kind == 3:
            return self.mean(x)
        return self.pick(*same) if same else x

    # --- layers: [B, S, W] -> [B, S, W']

    def pointwise(self, x: Value) -> Value:
        return self.unary(self.pick(*TAME), x)

    def arithmetic(self, x: Value) -> Value:
        fn = self.pick(BinaryFn.ADD, BinaryFn.SUB, BinaryFn.MUL, BinaryFn.MAXIMUM, BinaryFn.MINIMUM)
        pair = (x, self.other(x))
        return self.add(Binary(fn), *(pair if self.flag() else pair[::-1]))

    def power(self, x: Value) -> Value:
        base = self.plus(self.unary(UnaryFn.ABS, x), 0.5)
        return self.binary(BinaryFn.POW, base, self.pick(2.0, 3.0, 0.5, -0.5, -1.0, 1.7))

    def root(self, x: Value) -> Value:
        under = self.plus(self.mul(x, x), 0.5)
        top = self.pick(x, self.scalar(1.0))
        return self.add(Binary(BinaryFn.DIV), top, self.unary(UnaryFn.SQRT, under))

    def choose(self, x: Value) -> Value:
        fn = self.pick(BinaryFn.GT, BinaryFn.LE, BinaryFn.LT, BinaryFn.GE)
        condition = self.add(Binary(fn), x, self.scalar(0.3137))
        if self.flag():
            second = self.add(Binary(BinaryFn.LT), self.mul(x, 0.7), self.scalar(0.911))
            condition = self.add(Binary(self.pick(BinaryFn.AND, BinaryFn.OR)), condition, second)
        if self.flag():
            condition = self.add(Unary(UnaryFn.NOT), condition)
        return self.add(Where(), condition, x, self.other(x))

    def norm(self, x: Value) -> Value:
        if self.flag():
            return self.rms_norm(x, self.name() + "norm", self.flag(), self.flag())
        return self.layer_norm(x, self.name() + "norm")

    def centred_norm(self, x: Value) -> Value:
        c = self.binary(BinaryFn.SUB, x, self.mean(x))
        root = self.unary(UnaryFn.RSQRT, self.plus(self.mean(self.mul(c, c)), 1e-3))
        y = self.mul(c, root)
        return self.mul(y, self.weight(self.name(), self.width(x))) if self.flag() else y

    def split(self, x: Value) -> Value:
        """Parts of the features, changed and joined in another order."""
        width = self.width(x)
        at = self.pick(*range(1, width))
        a, b = self.cut(x, 0, at), self.cut(x, at, width)
        parts = [self.pointwise(a), b] if self.flag() else [b, a]
        return self.add(Concat(2), *parts)

    def stride(self, x: Value) -> Value:
        width = self.width(x) // 2 * 2
        return self.plus(self.cut(x, 0, width, 2), self.mul(self.cut(x, 1, width, 2), 0.5))

    def shuffle(self, x: Value) -> Value:
        """Features as a matrix: transposed, reduced, repeated."""
        width = self.width(x)
        rows = self.pick(*(d for d in (2, 3, 4) if width % d == 0))
        square = self.view(x, self.batch, self.seq, rows, width // rows)
        if self.flag():
            square = self.add(Permute((0, 1, 3, 2)), square)
        if self.flag():
            fn, axis = self.pick(*ReduceFn), self.pick(2, 3)
            small = self.add(Reduce(fn, axis), square)
            square = self.add(Binary(BinaryFn.SUB), square, small)
        if self.flag():
            square = self.add(Softmax(), square)
        return self.view(square, self.batch, self.seq, width)

    def repeat(self, x: Value) -> Value:
        width = self.width(x)
        if width > 24:
            return x
        wide = self.view(x, self.batch, self.seq, width, 1)
        wide = self.add(Expand((self.batch, self.seq, width, 2)), wide)
        return self.view(wide, self.batch, self.seq, 2 * width)

    def project(self, x: Value) -> Value:
        y = self.linear(x, self.name(), self.pick(*WIDTHS), self.flag(), self.flag())
        return self.pointwise(y) if self.flag() else y

    def mlp(self, x: Value) -> Value:
        act = self.pick(UnaryFn.SILU, UnaryFn.GELU, UnaryFn.RELU, UnaryFn.SIGMOID)
        return self.plus(x, self.gated(x, self.name(), self.pick(12, 32, 40), act, self.flag()))

    def fused(self, x: Value) -> Value:
        """Gate and up in one matrix, as Phi-3 has them."""
        inner = self.pick(12, 16)
        both = self.linear(x, self.name(), 2 * inner)
        gate, up = self.cut(both, 0, inner), self.cut(both, inner, 2 * inner)
        return self.mul(self.unary(UnaryFn.SILU, gate), up)

    def places(self, x: Value) -> Value:
        """A factor of the position."""
        places = self.plus(self.add(Cast(DType.F32), self.positions), 1.0)
        scale = self.plus(self.mul(self.unary(UnaryFn.LOG, places), 0.1), 1.0)
        return self.mul(x, self.view(scale, self.batch, self.seq, 1))

    def attention(self, x: Value) -> Value:
        kv_heads = self.pick(1, 2)
        heads, dim = kv_heads * self.pick(1, 2, 3), self.pick(4, 8, 10)
        interleaved, rotary = self.flag(), self.pick(0, 4, dim // 2 * 2)
        q = self.heads(self.linear(x, self.name(), heads * dim), heads)
        k = self.heads(self.linear(x, self.name(), kv_heads * dim), kv_heads)
        v = self.heads(self.linear(x, self.name(), kv_heads * dim), kv_heads)
        if rotary:
            key = rotary, interleaved
            if key not in self.tables:
                self.tables[key] = self.rope_tables(rotary, interleaved)
            q, k = (self.rope(t, self.tables[key], interleaved) for t in (q, k))
        mask = Mask(window=self.pick(None, 3))
        op = Attention(dim**-0.5, mask, softcap=self.pick(None, 1.5), has_sinks=self.flag())
        sinks = [self.weight(self.name(), heads)] if op.has_sinks else []
        return self.attend(q, k, v, op, *sinks)


LAYERS = (
    Model.pointwise,
    Model.arithmetic,
    Model.power,
    Model.root,
    Model.choose,
    Model.norm,
    Model.centred_norm,
    Model.split,
    Model.stride,
    Model.shuffle,
    Model.repeat,
    Model.project,
    Model.mlp,
    Model.fused,
    Model.places,
    Model.attention,
)


@st.composite
def models(draw: st.DrawFn) -> Graph:
    """A graph of up to 8 layers whose values stay near 1."""
    m = Model(Drawn(draw))
    layers = draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=8))
    width = m.pick(*WIDTHS)
    x = tower(m, width, layers)
    if m.flag() and m.width(x) == width:
        return m.graph(m.add(Linear(), x, m.weight("table.embed", 90, width)))
    return m.graph(m.linear(x, "head", 90))


def tower(m: Model, width: int, layers: Sequence[Callable[[Model, Value], Value]]) -> Value:
    """An embedding and layers on it, normed at last."""
    x = m.embed(m.stem + "table.embed", 90, width)
    m.pool = [x]
    for i, layer in enumerate(layers):
        m.b.loc = f"layers.{i}.{layer.__name__}"
        x = layer(m, x)
        if m.width(x) < 4 or m.pick(0, 1, 2, 3) == 0:
            x = m.project(m.norm(x))
        m.pool.append(x)
        if m.flag():
            x = m.pick(*m.pool[-2:])
    m.b.loc = "head"
    return m.norm(x)


def forest(seed: int, size: int) -> Graph:
    """Many towers side by side, every layer among them; the logits are all their results in one row."""
    m = Model(Seeded(seed))
    results = []
    for i in range(size):
        layers = [LAYERS[(i + j) % len(LAYERS)] if j == 0 else m.pick(*LAYERS) for j in range(m.pick(2, 3, 4))]
        m.tables = {}
        width = m.pick(*WIDTHS)
        m.weights = {}
        m.stem = f"t{i}."
        results.append(tower(m, width, layers))
    return m.graph(m.add(Concat(2), *results))
