"""Ops that combine elements along axes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError, Op
from llmc.ir.ops.pointwise import broadcast, tensors
from llmc.ir.types import DType, TensorType, Type


class ReduceFn(Enum):
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True)
class Reduce(Op):
    """fn over one axis, which stays as a dim of 1."""

    fn: ReduceFn
    axis: int

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if not 0 <= self.axis < x.rank:
            raise IRError(f"reduce over axis {self.axis} of {x}")
        shape = list(x.shape)
        shape[self.axis] = 1
        return (x.with_shape(*shape),)


@dataclass(frozen=True)
class Softmax(Op):
    """exp(x - max) / sum along the last axis, in float32."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        return (x,)


@dataclass(frozen=True)
class MatMul(Op):
    """a[..., M, K] @ b[..., K, N] with broadcast leading dims."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        a, b = tensors(types, 2)
        if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2] or a.dtype != b.dtype:
            raise IRError(f"matmul of {a} and {b}: inner dims or dtypes do not fit")
        return (a.with_shape(*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]),)


@dataclass(frozen=True)
class Linear(Op):
    """x[..., K] times w[N, K] transposed, plus an optional bias [N] -> [..., N], accumulated in float32.

    `scheme`: what it is to be multiplied in, once that is chosen.
    """

    scheme: Scheme | None = None

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, w, *bias = tensors(types, len(types))
        if w.rank != 2 or x.shape[-1] != w.shape[1]:
            raise IRError(f"linear of {x} with weight {w}: expected weight [N, {x.shape[-1]}]")
        if len(bias) > 1 or any(b.shape != (w.shape[0],) for b in bias):
            raise IRError(f"linear with weight {w} and bias {', '.join(map(str, bias))}: expected one [{w.shape[0]}]")
        return (TensorType(DType.F32, (*x.shape[:-1], w.shape[0])),)


@dataclass(frozen=True)
class GatedLinear(Op):
    """Two linears of one input joined by pointwise nodes: x[T, K], a, b [N, K], extras -> body(x a^T, x b^T, extras).

    Body inputs: two f32[T, N], then the extras; its one output is the node's.
    """

    body: Graph
    scheme: Scheme | None = None

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, a, b, *extras = tensors(types, len(types))
        result = TensorType(DType.F32, (*x.shape[:-1], a.shape[0]))
        given = (result, result, *extras)
        expected = tuple(v.type for v in self.body.inputs)
        if a.shape != b.shape or a.shape[-1] != x.shape[-1] or expected != given:
            raise IRError(f"gated_linear of {x} with {a} and {b}: body takes {[str(t) for t in expected]}")
        return tuple(v.type for v in self.body.outputs)
