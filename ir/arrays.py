"""What each op does to numpy arrays: the arithmetic of the reference interpreter.

Transcendental functions and reductions go through float64 and round once. bf16 and f16 values are held as float32
arrays that have been rounded to the format, quantised ones as their codes, one to a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llmc.ir.ops.attention import Attention, Mask, PagedAttention
from llmc.ir.ops.nn import LayerNorm, RopeStyle
from llmc.ir.ops.pointwise import BinaryFn, UnaryFn
from llmc.ir.ops.reduce import ReduceFn
from llmc.ir.types import DType

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.floating]

_erf = np.vectorize(math.erf, otypes=[np.float64])
NUMPY: dict[DType, npt.DTypeLike] = {
    DType.F32: np.float32,
    DType.F16: np.float32,
    DType.BF16: np.float32,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.BOOL: np.bool_,
    DType.I4: np.int8,
    DType.U4: np.uint8,
    DType.F4_E2M1: np.uint8,
    DType.NL4: np.uint8,
    DType.F8_E4M3: np.uint8,
}


def round_to(x: Array, dtype: DType) -> Array:
    """x converted to a dtype as the interpreter holds it (bf16 and f16: rounded to nearest even, as float32)."""
    if dtype is DType.BF16:
        return round_bf16(x.astype(np.float32))
    if dtype is DType.F16:
        with np.errstate(over="ignore"):  # beyond its range: infinite, as rounding says
            return x.astype(np.float16).astype(np.float32)
    return x.astype(NUMPY[dtype])


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def widened(x: Array) -> Floats:
    return x.astype(np.float64)


def unary(fn: UnaryFn, x: Array) -> Array:
    """One pointwise function; transcendental ones go through float64."""
    if fn is UnaryFn.NOT:
        return ~x.astype(bool)
    if fn in _EXACT:
        return _EXACT[fn](x)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _TRANSCENDENTAL[fn](widened(x)).astype(x.dtype)


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
            return np.asarray(widened(x).sum(axis, keepdims=True))
        case ReduceFn.MEAN:
            return np.asarray(widened(x).mean(axis, keepdims=True))
        case ReduceFn.MAX:
            return np.asarray(x.max(axis, keepdims=True))
        case ReduceFn.MIN:
            return np.asarray(x.min(axis, keepdims=True))


def softmax(x: Array) -> Floats:
    e = np.exp(widened(x) - widened(x).max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm(op: LayerNorm, args: list[Array]) -> Floats:
    x = widened(args[0])
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + op.eps)
    if op.has_weight:
        y = y * args[1]
    if op.has_bias:
        y = y + args[-1]
    return np.asarray(y)


def rope_table(positions: Array, inv_freq: Array) -> list[Array]:
    angles = positions.astype(np.float32)[:, None] * inv_freq.astype(np.float32)
    return [np.cos(widened(angles)), np.sin(widened(angles))]


def rope(style: RopeStyle, x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[1]
    pairs = (
        [slice(0, half), slice(half, 2 * half)]
        if style is RopeStyle.HALF
        else [slice(0, 2 * half, 2), slice(1, 2 * half, 2)]
    )
    out = np.array(x)
    a, b = (widened(x[..., p]) for p in pairs)
    c, s = widened(cos)[:, None], widened(sin)[:, None]
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
    scores = widened(q) @ np.repeat(widened(k), group, 0).transpose(0, 2, 1) * op.scale
    if op.softcap is not None:
        scores = np.tanh(scores / op.softcap) * op.softcap
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    if sinks:
        top = np.maximum(top, widened(sinks[0])[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks:
        total = total + np.exp(widened(sinks[0])[:, None, None] - top)
    return np.asarray(weights @ np.repeat(widened(v), group, 0) / total)


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


def interleave(parts: list[Array], rows: int) -> Array:
    n = parts[0].shape[0]
    padded = [np.pad(p, [(0, -n % rows)] + [(0, 0)] * (p.ndim - 1)) for p in parts]
    runs = [p.reshape(-1, rows, *p.shape[1:]) for p in padded]
    return np.asarray(np.stack(runs, 1).reshape(-1, *parts[0].shape[1:]))
