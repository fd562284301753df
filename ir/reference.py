"""Numpy interpreter of any graph at any level: the oracle that passes and kernels are tested against.

Float32 values are computed in float32 numpy (reductions in float64, rounded once), or wholly in float64 with
`wide=True`. bf16 and f16 values are held as float32 arrays that have been rounded to the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmc.ir.arrays import (
    NUMPY,
    Array,
    Floats,
    attend,
    attention,
    binary,
    interleave,
    layer_norm,
    reduce,
    rope,
    rope_table,
    round_to,
    softmax,
    unary,
    visible,
    widened,
)
from llmc.ir.dims import Dim, Poly, evaluate
from llmc.ir.formats import Numbers, kv_numbers, weight_numbers
from llmc.ir.graph import Graph, Node, Op, Value
from llmc.ir.ops.attention import Attention, KvWrite, MaskDescriptor, PagedAttention
from llmc.ir.ops.constant import (
    Apply,
    Dequantize,
    Interleave,
    Literal,
    Pack,
    PackScales,
    Quantize,
    Scalar,
    Source,
    Weight,
    WeightExpr,
)
from llmc.ir.ops.kernel import GATE_RUN, PackedLinear, QuantizeRows, RowKernel, Rows
from llmc.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeTable
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.reduce import GatedLinear, Linear, MatMul, Reduce, Softmax
from llmc.ir.ops.shape import Arange, Concat, Expand, GatherRows, Permute, Slice, View
from llmc.ir.quantise import Quantised, quantise, quantise_input
from llmc.ir.types import DType

ReadSource = Callable[[Source], Array]


@dataclass
class Cache:
    """The KV cache as the interpreter holds it: (slot, sequence, position) -> k [Hkv, D], v [Hkv, Dv]."""

    entries: dict[tuple[int, int, int], tuple[Floats, Floats]] = field(default_factory=dict)


def run(graph: Graph, inputs: Mapping[str, object], read: ReadSource, wide: bool = False) -> list[object]:
    """Outputs of a graph. Inputs by name: arrays, and a `Cache` (which is changed in place) for %kv."""
    interpreter = _Interpreter(read, np.float64 if wide else np.float32)
    return interpreter.graph(graph, [inputs[v.name] for v in graph.inputs])


def weight(expr: WeightExpr, read: ReadSource) -> Array:
    """The array of a weight expression; its layout, if any, is not applied."""
    return _Interpreter(read, np.float32).weight(expr)


def constant(literal: Literal) -> Array:
    """The array [] of a literal."""
    return np.asarray(literal.value, NUMPY[literal.dtype])


def apply_op(op: Op, args: list[Array]) -> Array:
    """One op with one output and static shapes, on arrays."""
    return _Interpreter(_no_source, np.float32).apply(op, args, {})


def _no_source(source: Source) -> Array:
    raise TypeError(f"{source} in an op")


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
                return [quantise_input(arrays[0].astype(np.float32), Numbers(DType.I8, group))]
            case Embedding() if len(arrays) > 2:
                table, ids, *scales = arrays
                rows = [part[ids] for part in (table, *scales)]
                results = [_floats(rows, weight_numbers(node.inputs[0].tensor))]
            case GatedLinear(body):
                x, a, b, *extras = arrays
                both = [self._real(np.asarray(widened(x) @ widened(w).T)) for w in (a, b)]
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
                return np.asarray(value, NUMPY[dtype])
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
                return np.asarray(widened(args[0]) @ widened(args[1]))
            case Linear():
                return np.asarray(widened(args[0]) @ widened(args[1]).T + (widened(args[2]) if len(args) > 2 else 0))
            case Embedding():
                return np.asarray(args[0][args[1]])
            case RmsNorm(eps):
                x = widened(args[0])
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
            case RowKernel():
                return op.meaning(*args)
            case Pack():
                return args[0]
            case Interleave(rows):
                return interleave(args, rows)
            case PackScales():
                return args[0]
            case Quantize(numbers, part):
                return quantise(args[0].astype(np.float32), numbers).part(part)
            case Dequantize(numbers):
                return Quantised.of(args, numbers).floats().astype(np.float32)
        raise TypeError(f"the interpreter has no meaning for {op}")

    def cached(self, op: KvWrite | PagedAttention, inputs: list[object]) -> object:
        cache, *rest = inputs
        assert isinstance(cache, Cache)
        arrays = [np.asarray(x) for x in rest]
        if isinstance(op, KvWrite):
            k, v, positions, seqs = arrays
            for t, (position, seq) in enumerate(zip(positions, seqs, strict=True)):
                entry = tuple(self._real(_kept(x[t], op.dtype)) for x in (k, v))
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
        result = round_to(np.stack(rows), op.result)
        return self._real(result.reshape(len(result), -1) if op.joined else result)

    def packed_linear(self, op: PackedLinear, inputs: list[object]) -> list[object]:
        x, *rest = inputs
        parts, extra = [np.asarray(p) for p in rest[: op.num_parts]], rest[op.num_parts :]
        rows = x.floats() if isinstance(x, Quantised) else widened(np.asarray(x))
        result = rows @ _floats(parts, op.scheme.weight).T
        results = [result]
        if op.gated:
            runs = result.reshape(len(result), -1, 2, GATE_RUN)
            width = evaluate(op.epilogue.inputs[0].tensor.shape[-1], {})
            results = [runs[:, :, i].reshape(len(result), -1)[:, :width] for i in range(2)]
        return self.graph(op.epilogue, [*(self._real(r) for r in results), *extra])


def _kept(x: Array, dtype: DType) -> Array:
    """Heads [H, D] of a position as a cache in this dtype gives them back."""
    numbers = kv_numbers(dtype)
    if numbers.group is None:
        return round_to(x, dtype)
    return quantise_input(x.astype(np.float32), numbers).floats().astype(np.float32)


def _floats(parts: list[Array], numbers: Numbers) -> Floats:
    """What the parts of a matrix mean."""
    return widened(parts[0]) if numbers.group is None else Quantised.of(parts, numbers).floats()


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
