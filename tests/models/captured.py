"""Builds captured graphs by hand, with the spellings that HF's modules have after torch.export."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmc.ir.dims import Dim, Poly, sym
from llmc.ir.graph import Builder, Graph, Op, Value
from llmc.ir.ops.attention import Attention, Mask, MaskDescriptor
from llmc.ir.ops.constant import Scalar, Source, Weight
from llmc.ir.ops.nn import Embedding, LayerNorm
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn
from llmc.ir.ops.reduce import Linear, MatMul, Reduce, ReduceFn
from llmc.ir.ops.shape import Concat, Expand, Permute, Slice, View
from llmc.ir.types import DType, TensorType
from llmc.ir.verify import verify

Array = npt.NDArray[np.generic]

# what functions are tried on; no denormals: kernels run with them flushed to zero
EDGES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.0,
        3.0,
        1e-3,
        -7.5,
        20.5,
        88.0,
        -100.0,
        1e10,
        3e38,
        -3e38,
        2e-38,
        np.inf,
        -np.inf,
        np.nan,
    ]
)
ENDS = np.concatenate([EDGES, [2.5, -3.0, 1e9, 16777217.0, -16777215.0, 8388609.0, 0.333]])


def read(source: Source, rows: tuple[int, int] | None = None) -> Array:
    """The values of a weight, from its name: norms near 1, inverse frequencies as in RoPE, matrices of unit gain."""
    random = np.random.default_rng(zlib.crc32(source.name.encode()))
    values = random.standard_normal(source.shape)
    if "inv_freq" in source.name:
        values = 100.0 ** -(np.arange(source.shape[0]) / source.shape[0])
    elif source.name == "ends.edges":
        return ENDS.astype(np.float32)
    elif source.name == "edges.embed":
        values = np.stack([np.roll(EDGES, i) for i in range(len(EDGES))])
    elif "norm" in source.name and "bias" not in source.name:
        values = 1 + 0.2 * values
    elif len(source.shape) == 2 and "embed" not in source.name:
        values /= math.sqrt(source.shape[1])
    elif len(source.shape) < 2:
        values *= 0.3
    whole = values.astype(np.float32)
    return whole if rows is None else whole[rows[0] : rows[1]]


@dataclass
class Captured:
    """A graph in the making: inputs %ids, %positions i64[B, S]; values [B, S, ...]."""

    b: Builder = field(default_factory=Builder)
    batch: Poly = field(default_factory=lambda: sym("B"))
    seq: Poly = field(default_factory=lambda: sym("S"))

    def __post_init__(self) -> None:
        kind = TensorType(DType.I64, (self.batch, self.seq))
        self.ids, self.positions = Value(kind, "ids"), Value(kind, "positions")
        self.weights: dict[str, Value] = {}

    def graph(self, logits: Value) -> Graph:
        graph = Graph("main", (self.ids, self.positions), (logits,), tuple(self.b.nodes))
        verify(graph)
        return graph

    def add(self, op: Op, *inputs: Value) -> Value:
        return self.b.add(op, *inputs)

    def weight(self, name: str, *shape: int) -> Value:
        if name not in self.weights:
            self.weights[name] = self.add(Weight(Source(name, DType.F32, shape)))
        return self.weights[name]

    def scalar(self, value: float) -> Value:
        return self.add(Scalar(value))

    def unary(self, fn: UnaryFn, x: Value) -> Value:
        return self.add(Unary(fn), x)

    def binary(self, fn: BinaryFn, a: Value, b: Value | float) -> Value:
        return self.add(Binary(fn), a, b if isinstance(b, Value) else self.scalar(b))

    def mul(self, a: Value, b: Value | float) -> Value:
        return self.binary(BinaryFn.MUL, a, b)

    def plus(self, a: Value, b: Value | float) -> Value:
        return self.binary(BinaryFn.ADD, a, b)

    def view(self, x: Value, *shape: Dim) -> Value:
        return self.add(View(shape), x)

    def width(self, x: Value) -> int:
        return int(str(x.tensor.shape[-1]))

    def cut(self, x: Value, start: int, stop: int, step: int = 1) -> Value:
        return self.add(Slice(x.tensor.rank - 1, start, stop, step), x)

    def mean(self, x: Value) -> Value:
        return self.add(Reduce(ReduceFn.MEAN, x.tensor.rank - 1), x)

    # --- layers

    def embed(self, name: str, vocab: int, width: int, ids: Value | None = None) -> Value:
        return self.add(Embedding(), self.weight(name, vocab, width), ids if ids is not None else self.ids)

    def linear(self, x: Value, name: str, n: int, bias: bool = False, transposed: bool = False) -> Value:
        k = self.width(x)
        if transposed:  # GPT-2's Conv1D
            y = self.add(MatMul(), x, self.weight(name + ".weight", k, n))
            return self.plus(y, self.weight(name + ".bias", n)) if bias else y
        inputs = [self.weight(name + ".weight", n, k), *([self.weight(name + ".bias", n)] if bias else [])]
        return self.add(Linear(), x, *inputs)

    def rms_norm(self, x: Value, name: str, plus_one: bool = False, by_power: bool = True) -> Value:
        square = self.binary(BinaryFn.POW, x, 2.0) if by_power else self.mul(x, x)
        root = self.unary(UnaryFn.RSQRT, self.plus(self.mean(square), 1e-6))
        weight = self.weight(name + ".weight", self.width(x))
        if plus_one:
            return self.mul(self.mul(x, root), self.plus(weight, 1.0))
        return self.mul(weight, self.mul(x, root))

    def layer_norm(self, x: Value, name: str) -> Value:
        w, b = (self.weight(f"{name}.{part}", self.width(x)) for part in ("weight", "bias"))
        return self.add(LayerNorm(1e-5), x, w, b)

    def heads(self, x: Value, num: int) -> Value:
        """[B, S, num * D] -> [B, num, S, D]"""
        split = self.view(x, self.batch, self.seq, num, self.width(x) // num)
        return self.add(Permute((0, 2, 1, 3)), split)

    def rope_tables(self, dims: int, interleaved: bool = False) -> tuple[Value, Value]:
        """cos, sin [B, 1, S, dims], as LlamaRotaryEmbedding computes them (or with every angle twice in a row)."""
        freq = self.view(self.weight(f"inv_freq{dims}", dims // 2), 1, dims // 2, 1)
        freq = self.add(Expand((self.batch, dims // 2, 1)), freq)
        places = self.add(Cast(DType.F32), self.view(self.positions, self.batch, 1, self.seq))
        angles = self.add(Permute((0, 2, 1)), self.add(MatMul(), freq, places))
        if interleaved:
            pair = self.view(angles, self.batch, self.seq, dims // 2, 1)
            pair = self.add(Expand((self.batch, self.seq, dims // 2, 2)), pair)
            twice = self.view(pair, self.batch, self.seq, dims)
        else:
            twice = self.add(Concat(2), angles, angles)
        tables = (self.mul(self.unary(fn, twice), 1.0) for fn in (UnaryFn.COS, UnaryFn.SIN))
        cos, sin = (self.view(t, self.batch, 1, self.seq, dims) for t in tables)
        return cos, sin

    def rope(self, x: Value, tables: tuple[Value, Value], interleaved: bool = False) -> Value:
        """x [B, H, S, D]; tables narrower than D turn its first dims."""
        cos, sin = tables
        width, dims = self.width(x), self.width(cos)
        turned = x if dims == width else self.cut(x, 0, dims)
        if interleaved:
            shape = (*turned.tensor.shape[:-1], dims // 2, 1)
            odd = self.view(self.unary(UnaryFn.NEG, self.cut(turned, 1, dims, 2)), *shape)
            even = self.view(self.cut(turned, 0, dims, 2), *shape)
            other = self.view(self.add(Concat(4), odd, even), *turned.tensor.shape)
        else:
            high = self.unary(UnaryFn.NEG, self.cut(turned, dims // 2, dims))
            other = self.add(Concat(3), high, self.cut(turned, 0, dims // 2))
        y = self.plus(self.mul(turned, cos), self.mul(other, sin))
        return y if dims == width else self.add(Concat(3), y, self.cut(x, dims, width))

    def attend(self, q: Value, k: Value, v: Value, op: Attention, *sinks: Value) -> Value:
        """q, k, v [B, H, S, D] -> [B, S, H * Dv]"""
        self.add(MaskDescriptor(op.mask), self.ids)
        y = self.add(op, q, k, v, *sinks)
        return self.view(y, self.batch, self.seq, int(str(y.tensor.shape[2])) * self.width(y))

    def gated(self, x: Value, name: str, inner: int, act: UnaryFn, bias: bool = False) -> Value:
        gate = self.unary(act, self.linear(x, name + ".gate", inner, bias))
        both = self.mul(gate, self.linear(x, name + ".up", inner, bias))
        return self.linear(both, name + ".down", self.width(x), bias)


def llama(layers: int = 2, interleaved: bool = False, rotary: int = 16) -> Graph:
    """GQA 4/2, head_dim other than width / heads, gated MLPs of an even and an odd width, tied head."""
    c = Captured()
    x = c.embed("embed.weight", 100, 48)
    tables = c.rope_tables(rotary, interleaved)
    for i in range(layers):
        c.b.loc = f"layers.{i}"
        n = c.rms_norm(x, f"l{i}.norm1")
        q, k, v = (
            c.heads(c.linear(n, f"l{i}.{p}", h * 16, bias=p == "k"), h) for p, h in (("q", 4), ("k", 2), ("v", 2))
        )
        q, k = c.rope(q, tables, interleaved), c.rope(k, tables, interleaved)
        x = c.plus(x, c.linear(c.attend(q, k, v, Attention(0.25)), f"l{i}.o", 48))
        x = c.plus(x, c.gated(c.rms_norm(x, f"l{i}.norm2"), f"l{i}.mlp", (96, 72)[i % 2], UnaryFn.SILU))
    c.b.loc = "head"
    return c.graph(c.add(Linear(), c.rms_norm(x, "norm"), c.weight("embed.weight", 100, 48)))


def gpt2(layers: int = 2) -> Graph:
    """Learned positions, layer norms, one matrix for q, k and v, biases everywhere, GELU, untied head."""
    c = Captured()
    x = c.plus(c.embed("wte.embed", 90, 40), c.embed("wpe.embed", 200, 40, c.positions))
    for i in range(layers):
        c.b.loc = f"h.{i}"
        qkv = c.linear(c.layer_norm(x, f"h{i}.norm1"), f"h{i}.attn", 120, bias=True, transposed=True)
        q, k, v = (c.heads(c.cut(qkv, at, at + 40), 5) for at in (0, 40, 80))
        y = c.attend(q, k, v, Attention(8**-0.5))
        x = c.plus(c.linear(y, f"h{i}.proj", 40, bias=True, transposed=True), x)
        y = c.linear(c.layer_norm(x, f"h{i}.norm2"), f"h{i}.fc", 96, bias=True, transposed=True)
        x = c.plus(c.linear(c.unary(UnaryFn.GELU_TANH, y), f"h{i}.out", 40, bias=True, transposed=True), x)
    c.b.loc = "head"
    return c.graph(c.linear(c.layer_norm(x, "norm"), "lm_head", 90))


def gemma(layers: int = 2) -> Graph:
    """Scaled embedding, sandwich norms of 1 + w, q and k norms, soft caps, a window on every other layer, one kv head,
    values narrower than keys, sinks."""
    c = Captured()
    x = c.mul(c.embed("embed.weight", 110, 64), 8.0)
    tables = c.rope_tables(8)
    for i in range(layers):
        c.b.loc = f"layers.{i}"
        n = c.rms_norm(x, f"g{i}.norm1", plus_one=True)
        q = c.rms_norm(c.heads(c.linear(n, f"g{i}.q", 3 * 24), 3), f"g{i}.qnorm", plus_one=True)
        k = c.rms_norm(c.heads(c.linear(n, f"g{i}.k", 24), 1), f"g{i}.knorm", plus_one=True)
        v = c.heads(c.linear(n, f"g{i}.v", 20), 1)
        q, k = c.rope(q, tables), c.rope(k, tables)
        op = Attention(24**-0.5, Mask(window=5 if i % 2 == 0 else None), softcap=2.0, has_sinks=i == 1)
        sinks = [c.weight(f"g{i}.sinks", 3)] if i == 1 else []
        y = c.linear(c.attend(q, k, v, op, *sinks), f"g{i}.o", 64)
        x = c.plus(x, c.rms_norm(y, f"g{i}.norm2", plus_one=True))
        y = c.gated(c.rms_norm(x, f"g{i}.norm3", plus_one=True), f"g{i}.mlp", 80, UnaryFn.GELU_TANH)
        x = c.plus(x, c.rms_norm(y, f"g{i}.norm4", plus_one=True))
    c.b.loc = "head"
    logits = c.add(Linear(), c.rms_norm(x, "norm", plus_one=True), c.weight("embed.weight", 110, 64))
    capped = c.mul(c.unary(UnaryFn.TANH, c.binary(BinaryFn.DIV, logits, 3.0)), 3.0)
    return c.graph(capped)


def windows() -> Graph:
    """One layer of each mask, of which the last two read one layer's keys and values, the wider window first."""
    c = Captured()
    x = c.embed("embed.weight", 100, 32)
    masks = (Mask(window=5), Mask(chunk=16), Mask(), Mask(window=40, chunk=33), Mask(window=38), Mask(window=5))
    kv: list[Value] = []
    for i, mask in enumerate(masks):
        c.b.loc = f"layers.{i}"
        n = c.rms_norm(x, f"w{i}.norm")
        if i < 5:
            kv = [c.heads(c.linear(n, f"w{i}.{p}", 32), 2) for p in "kv"]
        y = c.attend(c.heads(c.linear(n, f"w{i}.q", 64), 4), *kv, Attention(0.5, mask))
        x = c.plus(x, c.linear(y, f"w{i}.o", 32))
    c.b.loc = "head"
    return c.graph(c.linear(c.rms_norm(x, "norm"), "lm_head", 100))


def twin() -> Graph:
    """Two attentions of one input side by side, with keys of different widths, one of them windowed."""
    c = Captured()
    x = c.embed("embed.weight", 100, 32)
    n = c.rms_norm(x, "norm1")
    results = []
    for name, dim, window in (("a", 8, None), ("b", 16, 4)):
        q, k, v = (c.heads(c.linear(n, f"{name}.{p}", 2 * dim), 2) for p in "qkv")
        results.append(c.attend(q, k, v, Attention(dim**-0.5, Mask(window=window))))
    both = c.linear(c.add(Concat(2), *results), "o", 32)
    return c.graph(c.linear(c.rms_norm(c.plus(x, both), "norm2"), "lm_head", 100))
