"""Numpy interpreter of any graph at any level: the oracle that passes and kernels are tested against.

Float32 values are computed in float32 numpy (reductions in float64, rounded once), or wholly in float64 with
`wide=True`. bf16 and f16 values are held as float32 arrays that have been rounded to the format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmc.compiler.ir.dims import Dim, Poly, evaluate
from llmc.compiler.ir.graph import Graph, Node, Op, Value
from llmc.compiler.ir.ops.attention import Attention, KvWrite, Mask, MaskDescriptor, PagedAttention
from llmc.compiler.ir.ops.constant import (
    Apply,
    Interleave,
    Literal,
    Pack,
    QuantizeChannels,
    QuantPart,
    Scalar,
    Source,
    Weight,
    WeightExpr,
)
from llmc.compiler.ir.ops.kernel import GATE_RUN, PackedLinear, QuantizeRows, Rows, Sample
from llmc.compiler.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeStyle, RopeTable
from llmc.compiler.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.compiler.ir.ops.reduce import GatedLinear, Linear, MatMul, Reduce, ReduceFn, Softmax
from llmc.compiler.ir.ops.shape import Arange, Concat, Expand, GatherRows, Permute, Slice, View
from llmc.compiler.ir.types import DType

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.floating]
ReadSource = Callable[[Source], Array]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_NUMPY: dict[DType, npt.DTypeLike] = {
    DType.F32: np.float32,
    DType.F16: np.float32,
    DType.BF16: np.float32,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.BOOL: np.bool_,
}


@dataclass
class Cache:
    """The KV cache as the interpreter holds it: (slot, sequence, position) -> k [Hkv, D], v [Hkv, Dv]."""

    entries: dict[tuple[int, int, int], tuple[Floats, Floats]] = field(default_factory=dict)


@dataclass(frozen=True)
class QuantizedRows:
    """What quantize_rows gives: data i8 [T, K] and scales f32 [T, groups], one for every `group` columns (0: the row)."""

    data: Array
    scales: Array
    group: int

    def wide(self) -> Floats:
        width = self.data.shape[1]
        per_column = np.repeat(self.scales, self.group or width, 1)[:, :width]
        return np.asarray(_wide(self.data) * _wide(per_column))


def run(graph: Graph, inputs: Mapping[str, object], read: ReadSource, wide: bool = False) -> list[object]:
    """Outputs of a graph. Inputs by name: arrays, and a `Cache` (which is changed in place) for %kv."""
    interpreter = _Interpreter(read, np.float64 if wide else np.float32)
    return interpreter.graph(graph, [inputs[v.name] for v in graph.inputs])


def weight(expr: WeightExpr, read: ReadSource) -> Array:
    """The array of a weight expression; its layout, if any, is not applied."""
    return _Interpreter(read, np.float32).weight(expr)


def constant(literal: Literal) -> Array:
    """The array [] of a literal."""
    return np.asarray(literal.value, _NUMPY[literal.dtype])


def apply_op(op: Op, args: list[Array]) -> Array:
    """One op with one output and static shapes, on arrays."""
    return _Interpreter(_no_source, np.float32).apply(op, args, {})


def _no_source(source: Source) -> Array:
    raise TypeError(f"{source} in an op")


def round_to(x: Array, dtype: DType) -> Array:
    """x converted to a dtype as the interpreter holds it (bf16 and f16: rounded to nearest even, as float32)."""
    if dtype is DType.BF16:
        return round_bf16(x.astype(np.float32))
    if dtype is DType.F16:
        return x.astype(np.float16).astype(np.float32)
    return x.astype(_NUMPY[dtype])


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


class _Interpreter:
    def __init__(self, read: ReadSource, real: npt.DTypeLike) -> None:
        self.read = read
        self.real = real

    def graph(self, graph: Graph, inputs: list[object]) -> list[object]:
        env: dict[Value, object] = dict(zip(graph.inputs, inputs, strict=True))
        sizes: dict[str, int] = {}
        for value, given in env.items():
            if isinstance(given, np.ndarray):
                _bind(value.tensor.shape, given.shape, sizes)
        for node in graph.nodes:
            results = self.node(node, [env[v] for v in node.inputs], sizes)
            env.update(zip(node.outputs, results, strict=True))
        return [env[v] for v in graph.outputs]

    def node(self, node: Node, inputs: list[object], sizes: dict[str, int]) -> list[object]:
        op = node.op
        if isinstance(op, KvWrite | PagedAttention):
            return [self.cached(op, inputs)]
        if isinstance(op, Rows):
            return self.graph(op.body, inputs)
        if isinstance(op, PackedLinear):
            return self.packed_linear(op, inputs)
        arrays = [np.asarray(x) for x in inputs]
        match op:
            case Weight(expr):
                results = [self._real(self.weight(expr))]
            case RopeTable():
                results = rope_table(*arrays)
            case QuantizeRows(group):
                return [QuantizedRows(*quantize_rows(arrays[0].astype(np.float32), group), group)]
            case GatedLinear(body):
                x, a, b, *extras = arrays
                both = [self._real(np.asarray(_wide(x) @ _wide(w).T)) for w in (a, b)]
                return self.graph(body, [*both, *extras])
            case _:
                results = [self.apply(op, arrays, sizes)]
        return [self._real(r) for r in results]

    def _real(self, x: Array) -> Array:
        return x.astype(self.real) if np.issubdtype(x.dtype, np.floating) else x

    def weight(self, expr: WeightExpr) -> Array:
        match expr:
            case Source():
                return self.read(expr)
            case Literal():
                return constant(expr)
            case Apply(op, args):
                return self.apply(op, [self.weight(a) for a in args], {})
        raise TypeError(f"unknown weight expression {expr}")

    def apply(self, op: Op, args: list[Array], sizes: Mapping[str, int]) -> Array:
        """One op with one output, on arrays."""
        match op:
            case Unary(fn):
                return unary(fn, args[0])
            case Binary(fn):
                return binary(fn, args[0], args[1])
            case Where():
                return np.where(args[0].astype(bool), args[1], args[2])
            case Cast(dtype):
                return round_to(args[0], dtype)
            case Scalar(value, dtype):
                return np.asarray(value, _NUMPY[dtype])
            case View(shape):
                return args[0].reshape(_sizes(shape, sizes))
            case Permute(perm):
                return args[0].transpose(perm)
            case Expand(shape):
                return np.broadcast_to(args[0], _sizes(shape, sizes))
            case Slice(axis, start, stop, step):
                return np.asarray(args[0][(slice(None),) * axis + (slice(start, stop, step),)])
            case Concat(axis):
                return np.concatenate(args, axis)
            case GatherRows():
                return np.asarray(args[0][args[1]])
            case Arange(size):
                return np.arange(_sizes((size,), sizes)[0], dtype=np.int64)
            case Reduce(fn, axis):
                return reduce(fn, args[0], axis)
            case Softmax():
                return softmax(args[0])
            case MatMul():
                return np.asarray(_wide(args[0]) @ _wide(args[1]))
            case Linear():
                return np.asarray(_wide(args[0]) @ _wide(args[1]).T + (_wide(args[2]) if len(args) > 2 else 0))
            case Embedding():
                rows = np.asarray(args[0][args[1]])
                return _wide(rows) * args[2][args[1]][..., None] if len(args) > 2 else rows
            case RmsNorm(eps):
                x = _wide(args[0])
                normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
                return np.asarray(normed * args[1] if len(args) > 1 else normed)
            case LayerNorm(eps):
                return layer_norm(op, args)
            case Rope(style):
                return rope(style, *args)
            case MaskDescriptor(mask):
                pos = np.arange(args[0].shape[1])
                return np.broadcast_to(visible(mask, pos, pos), (args[0].shape[0], 1, len(pos), len(pos)))
            case Attention():
                return attention(op, args)
            case Sample(valid):  # the parameters of a row are no part of the graph: greedy, the lowest id on ties
                return np.argmax(args[0][:, :valid], 1).astype(np.int32)
            case Pack():
                return args[0]
            case Interleave(rows):
                return interleave(args, rows)
            case QuantizeChannels(part):
                data, scales = quantize_rows(args[0].astype(np.float32), 0)
                return data if part is QuantPart.DATA else scales[:, 0]
        raise TypeError(f"the interpreter has no meaning for {op}")

    def cached(self, op: KvWrite | PagedAttention, inputs: list[object]) -> object:
        cache, *rest = inputs
        assert isinstance(cache, Cache)
        arrays = [np.asarray(x) for x in rest]
        if isinstance(op, KvWrite):
            k, v, positions, seqs = arrays
            for t, (position, seq) in enumerate(zip(positions, seqs, strict=True)):
                entry = tuple(self._real(round_to(x[t], op.dtype)) for x in (k, v))
                cache.entries[op.slot, int(seq), int(position)] = (entry[0], entry[1])  # type: ignore[assignment]
            return cache
        q, positions, seqs, *sinks = arrays
        rows = []
        for t, (position, seq) in enumerate(zip(positions, seqs, strict=True)):
            history = [cache.entries[op.slot, int(seq), p] for p in range(int(position) + 1)]
            k = np.stack([h[0] for h in history], 1)
            v = np.stack([h[1] for h in history], 1)
            allowed = visible(op.mask, np.asarray([position]), np.arange(len(history)))
            rows.append(self._real(attend(op, q[t][:, None], k, v, allowed, sinks))[:, 0])
        return np.stack(rows)

    def packed_linear(self, op: PackedLinear, inputs: list[object]) -> list[object]:
        x, w, *extra = inputs
        weights = _wide(np.asarray(w))
        if isinstance(x, QuantizedRows):
            channel_scales, *extra = extra
            result = x.wide() @ weights.T * _wide(np.asarray(channel_scales))
        else:
            result = _wide(np.asarray(x)) @ weights.T
        results = [result]
        if op.gated:
            runs = result.reshape(len(result), -1, 2, GATE_RUN)
            width = evaluate(op.epilogue.inputs[0].tensor.shape[-1], {})
            results = [runs[:, :, i].reshape(len(result), -1)[:, :width] for i in range(2)]
        return self.graph(op.epilogue, [*(self._real(r) for r in results), *extra])


def _wide(x: Array) -> Floats:
    return x.astype(np.float64)


def _bind(shape: tuple[Dim, ...], actual: tuple[int, ...], sizes: dict[str, int]) -> None:
    if len(shape) != len(actual):
        raise ValueError(f"input of shape {actual} for {[str(d) for d in shape]}")
    for dim, size in zip(shape, actual, strict=True):
        if isinstance(dim, Poly) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
            name = dim.terms[0][0][0].name
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"dim {name} is {sizes[name]} and {size}")


def _sizes(shape: tuple[Dim, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in shape)


def unary(fn: UnaryFn, x: Array) -> Array:
    """One pointwise function; transcendental ones go through float64."""
    if fn is UnaryFn.NOT:
        return ~x.astype(bool)
    if fn in _EXACT:
        return _EXACT[fn](x)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _TRANSCENDENTAL[fn](_wide(x)).astype(x.dtype)


_EXACT: dict[UnaryFn, Callable[[Array], Array]] = {
    UnaryFn.NEG: lambda x: np.asarray(np.negative(x)),
    UnaryFn.ABS: lambda x: np.asarray(np.abs(x)),
    UnaryFn.RELU: lambda x: np.asarray(np.maximum(x, np.zeros((), x.dtype))),
}

_TRANSCENDENTAL: dict[UnaryFn, Callable[[Floats], Floats]] = {
    UnaryFn.EXP: np.exp,
    UnaryFn.LOG: np.log,
    UnaryFn.SQRT: np.sqrt,
    UnaryFn.RSQRT: lambda x: 1 / np.sqrt(x),
    UnaryFn.RECIPROCAL: lambda x: 1 / x,
    UnaryFn.TANH: np.tanh,
    UnaryFn.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    UnaryFn.SILU: lambda x: x / (1 + np.exp(-x)),
    UnaryFn.GELU: lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    UnaryFn.GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    UnaryFn.ERF: _erf,
    UnaryFn.SIN: np.sin,
    UnaryFn.COS: np.cos,
    UnaryFn.SOFTPLUS: lambda x: np.logaddexp(x, 0),
}

_BINARY: dict[BinaryFn, Callable[[Array, Array], Array]] = {
    BinaryFn.ADD: np.add,
    BinaryFn.SUB: np.subtract,
    BinaryFn.MUL: np.multiply,
    BinaryFn.DIV: np.divide,
    BinaryFn.POW: np.power,
    BinaryFn.MAXIMUM: np.maximum,
    BinaryFn.MINIMUM: np.minimum,
    BinaryFn.LT: np.less,
    BinaryFn.LE: np.less_equal,
    BinaryFn.GT: np.greater,
    BinaryFn.GE: np.greater_equal,
    BinaryFn.EQ: np.equal,
    BinaryFn.NE: np.not_equal,
    BinaryFn.AND: np.logical_and,
    BinaryFn.OR: np.logical_or,
}


def binary(fn: BinaryFn, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return _BINARY[fn](a, b)


def reduce(fn: ReduceFn, x: Array, axis: int) -> Array:
    match fn:
        case ReduceFn.SUM:
            return np.asarray(_wide(x).sum(axis, keepdims=True))
        case ReduceFn.MEAN:
            return np.asarray(_wide(x).mean(axis, keepdims=True))
        case ReduceFn.MAX:
            return np.asarray(x.max(axis, keepdims=True))
        case ReduceFn.MIN:
            return np.asarray(x.min(axis, keepdims=True))


def softmax(x: Array) -> Floats:
    e = np.exp(_wide(x) - _wide(x).max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm(op: LayerNorm, args: list[Array]) -> Floats:
    x = _wide(args[0])
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + op.eps)
    if op.has_weight:
        y = y * args[1]
    if op.has_bias:
        y = y + args[-1]
    return np.asarray(y)


def rope_table(positions: Array, inv_freq: Array) -> list[Array]:
    angles = positions.astype(np.float32)[:, None] * inv_freq.astype(np.float32)
    return [np.cos(_wide(angles)), np.sin(_wide(angles))]


def rope(style: RopeStyle, x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[1]
    pairs = (
        [slice(0, half), slice(half, 2 * half)]
        if style is RopeStyle.HALF
        else [slice(0, 2 * half, 2), slice(1, 2 * half, 2)]
    )
    out = np.array(x)
    a, b = (_wide(x[..., p]) for p in pairs)
    c, s = _wide(cos)[:, None], _wide(sin)[:, None]
    out[..., pairs[0]] = a * c - b * s
    out[..., pairs[1]] = b * c + a * s
    return out


def visible(mask: Mask, queries: Array, keys: Array) -> npt.NDArray[np.bool_]:
    """bool [queries, keys]: may the query at one position see the key at another."""
    i, j = queries.astype(np.int64)[:, None], keys.astype(np.int64)[None]
    allowed = j <= i
    if mask.window is not None:
        allowed = allowed & (i - j < mask.window)
    if mask.chunk is not None:
        allowed = allowed & (i // mask.chunk == j // mask.chunk)
    return np.asarray(allowed)


def attend(
    op: Attention | PagedAttention,
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    sinks: list[Array],
) -> Floats:
    """q [Hq, Q, D], k [Hkv, K, D], v [Hkv, K, Dv], allowed [Q, K] -> [Hq, Q, Dv]."""
    group = q.shape[0] // k.shape[0]
    scores = _wide(q) @ np.repeat(_wide(k), group, 0).transpose(0, 2, 1) * op.scale
    if op.softcap is not None:
        scores = np.tanh(scores / op.softcap) * op.softcap
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    if sinks:
        top = np.maximum(top, _wide(sinks[0])[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks:
        total = total + np.exp(_wide(sinks[0])[:, None, None] - top)
    return np.asarray(weights @ np.repeat(_wide(v), group, 0) / total)


def attention(op: Attention, args: list[Array]) -> Floats:
    """Attention over whole sequences, batched or ragged (see the op's docstring)."""
    q, k, v, *rest = args
    if q.ndim == 4:
        allowed = visible(op.mask, np.arange(q.shape[2]), np.arange(q.shape[2]))
        return np.stack([attend(op, q[b], k[b], v[b], allowed, rest).transpose(1, 0, 2) for b in range(len(q))])
    positions, seqs, *sinks = rest
    allowed = visible(op.mask, positions, positions) & (seqs[:, None] == seqs[None])
    per_head = attend(op, q.transpose(1, 0, 2), k.transpose(1, 0, 2), v.transpose(1, 0, 2), allowed, sinks)
    return per_head.transpose(1, 0, 2)


def quantize_rows(x: npt.NDArray[np.float32], group: int) -> list[Array]:
    """Symmetric int8 per group of a row (0: whole rows), in float32: data i8 of x's shape, scales f32[rows, groups]."""
    size = group or x.shape[1]
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size)
    largest = np.abs(groups).max(-1)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    data = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return [data.reshape(len(x), -1)[:, : x.shape[1]], largest / np.float32(127)]


def interleave(parts: list[Array], rows: int) -> Array:
    n = parts[0].shape[0]
    padded = [np.pad(p, [(0, -n % rows)] + [(0, 0)] * (p.ndim - 1)) for p in parts]
    runs = [p.reshape(-1, rows, *p.shape[1:]) for p in padded]
    return np.asarray(np.stack(runs, 1).reshape(-1, *parts[0].shape[1:]))
