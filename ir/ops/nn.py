"""The layers of a transformer as single ops: embedding, norms, rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmc.ir.formats import weight_numbers
from llmc.ir.graph import IRError, Op
from llmc.ir.ops.pointwise import tensors
from llmc.ir.types import DType, TensorType, Type


@dataclass(frozen=True)
class Embedding(Op):
    """table[V, H], ids[...] -> [..., H] in float32; other parts of a packed table, as scales, are inputs too."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        table, ids, *scales = tensors(types, len(types))
        if table.rank != 2 or ids.dtype not in (DType.I32, DType.I64):
            raise IRError(f"embedding of {ids} in {table}: expected integer ids and a table [V, H]")
        numbers = weight_numbers(table)
        if numbers.group is None and not numbers.element.is_float:
            raise IRError(f"embedding in {table}: integers without a scheme are no numbers")
        if misfit := numbers.misfit([table, *scales]):
            raise IRError(f"embedding in {', '.join(map(str, (table, *scales)))}: {misfit}")
        return (TensorType(DType.F32, (*ids.shape, table.shape[1])),)


@dataclass(frozen=True)
class RmsNorm(Op):
    """x * rsqrt(mean(x^2) + eps) over the last axis, times an optional weight of its width."""

    eps: float

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, *weight = tensors(types, len(types))
        if len(weight) > 1 or any(w.shape != x.shape[-1:] for w in weight):
            raise IRError(f"rms_norm of {x} with weight {', '.join(map(str, weight))}: expected [{x.shape[-1]}]")
        return (x,)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x - mean) * rsqrt(var + eps) over the last axis; then times weight and plus bias, as far as there are any.

    Inputs: x, then the weight if has_weight, then the bias if has_bias; both of the width of the last axis.
    """

    eps: float
    has_weight: bool = True
    has_bias: bool = True

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, *affine = tensors(types, 1 + self.has_weight + self.has_bias)
        if any(a.shape != x.shape[-1:] for a in affine):
            raise IRError(f"layer_norm of {x} with {', '.join(map(str, affine))}: expected [{x.shape[-1]}]")
        return (x,)


@dataclass(frozen=True)
class RopeTable(Op):
    """positions i32[T], inv_freq f32[R/2] -> cos, sin f32[T, R/2] of the float32 products."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        positions, inv_freq = tensors(types, 2)
        if positions.rank != 1 or inv_freq.rank != 1 or inv_freq.dtype != DType.F32:
            raise IRError(f"rope_table of {positions} and {inv_freq}: expected i32[T] and f32[R/2]")
        table = TensorType(DType.F32, (positions.shape[0], inv_freq.shape[0]))
        return (table, table)


class RopeStyle(Enum):
    HALF = "half"  # pairs (i, i + R/2)
    INTERLEAVED = "interleaved"  # pairs (2i, 2i + 1)


@dataclass(frozen=True)
class Rope(Op):
    """Rotate the first R of x[T, heads, D]'s dims by cos, sin [T, R/2]: (a, b) -> (a cos - b sin, b cos + a sin)."""

    style: RopeStyle

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, cos, sin = tensors(types, 3)
        half = cos.shape[-1]
        if x.rank != 3 or cos.shape != (x.shape[0], half) or sin.shape != cos.shape:
            raise IRError(f"rope of {x} by {cos}, {sin}: expected [T, heads, D] and two [T, R/2]")
        if not isinstance(half, int) or not isinstance(x.shape[2], int) or 2 * half > x.shape[2]:
            raise IRError(f"rope of {x} by {cos}: it rotates more dims than a head has")
        return (x,)
