"""Ops that move elements without computing: views, permutations, slices, concatenations, gathers."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.dims import Dim, product
from llmc.ir.graph import IRError, Op
from llmc.ir.ops.pointwise import tensors
from llmc.ir.types import DType, TensorType, Type


@dataclass(frozen=True)
class View(Op):
    """The same elements in row-major order under another shape."""

    shape: tuple[Dim, ...]

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if product(x.shape) != product(self.shape):
            raise IRError(
                f"view of {x} as {x.with_shape(*self.shape)}: {product(x.shape)} elements against {product(self.shape)}"
            )
        return (x.with_shape(*self.shape),)


@dataclass(frozen=True)
class Permute(Op):
    """Output axis i is input axis perm[i]."""

    perm: tuple[int, ...]

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if sorted(self.perm) != list(range(x.rank)):
            raise IRError(f"permute of {x} by {self.perm}: not a permutation of its {x.rank} axes")
        return (x.with_shape(*(x.shape[p] for p in self.perm)),)


@dataclass(frozen=True)
class Expand(Op):
    """Broadcast to a shape."""

    shape: tuple[Dim, ...]

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        padded = (1,) * (len(self.shape) - x.rank) + x.shape
        if len(padded) != len(self.shape) or any(a not in (1, b) for a, b in zip(padded, self.shape, strict=True)):
            raise IRError(f"expand of {x} to {x.with_shape(*self.shape)}: only dims of 1 can grow")
        return (x.with_shape(*self.shape),)


@dataclass(frozen=True)
class Slice(Op):
    """Elements start, start+step, ... below stop of one axis. All static; the axis may be symbolic only if whole."""

    axis: int
    start: int
    stop: int
    step: int = 1

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if not 0 <= self.axis < x.rank:
            raise IRError(f"slice along axis {self.axis} of {x}")
        size = x.shape[self.axis]
        if not isinstance(size, int) or not 0 <= self.start <= self.stop <= size or self.step < 1:
            raise IRError(f"slice {self.start}:{self.stop}:{self.step} of axis {self.axis} of {x}: outside it")
        shape = list(x.shape)
        shape[self.axis] = len(range(self.start, self.stop, self.step))
        return (x.with_shape(*shape),)


@dataclass(frozen=True)
class Concat(Op):
    """The inputs one after the other along an axis."""

    axis: int

    def infer(self, *types: Type) -> tuple[Type, ...]:
        parts = tensors(types, len(types))
        if not parts:
            raise IRError("concat of nothing")
        if any(not 0 <= self.axis < p.rank for p in parts):
            raise IRError(f"concat along axis {self.axis} of {', '.join(map(str, parts))}")
        shape = list(parts[0].shape)
        total: Dim = 0
        for part in parts:
            rest = list(part.shape)
            total = total + rest[self.axis]
            rest[self.axis] = shape[self.axis]
            if rest != shape or part.dtype != parts[0].dtype:
                raise IRError(
                    f"concat along axis {self.axis} of {', '.join(map(str, parts))}: other dims or dtypes differ"
                )
        shape[self.axis] = total
        return (parts[0].with_shape(*shape),)


@dataclass(frozen=True)
class GatherRows(Op):
    """x[T, ...], rows i32[R] -> x[rows]: [R, ...]."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        x, rows = tensors(types, 2)
        if rows.dtype != DType.I32 or rows.rank != 1:
            raise IRError(f"gather_rows by {rows}: expected i32[R]")
        return (x.with_shape(rows.shape[0], *x.shape[1:]),)


@dataclass(frozen=True)
class Arange(Op):
    """0, 1, ... size-1 as i64."""

    size: Dim

    def infer(self, *types: Type) -> tuple[Type, ...]:
        tensors(types, 0)
        return (TensorType(DType.I64, (self.size,)),)
