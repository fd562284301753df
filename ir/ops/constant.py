"""Values known at build: scalars and weights.

A weight is a lazy expression over checkpoint tensors: a tree of ordinary IR ops whose leaves are `Source`s. It is
evaluated row range by row range while the engine's weights are streamed to disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmc.ir.formats import Numbers, Packed, Part, ScalePanels, Scheme, WeightLayout
from llmc.ir.graph import IRError, Op
from llmc.ir.ops.pointwise import tensors
from llmc.ir.types import DType, TensorType, Type


class Origin(Enum):
    PARAMETER = "parameter"  # comes from the checkpoint
    BUFFER = "buffer"  # computed by the HF module at construction


@dataclass(frozen=True)
class WeightExpr:
    """How a constant tensor is made."""

    @property
    def type(self) -> TensorType:
        raise NotImplementedError


@dataclass(frozen=True)
class Source(WeightExpr):
    """A named tensor of the checkpoint (its name there) or a buffer of the module (its state_dict name)."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    origin: Origin = Origin.PARAMETER
    part: Part | None = None  # of a parameter that is stored quantised

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True)
class Literal(WeightExpr):
    """A scalar inside a weight expression."""

    value: float
    dtype: DType = DType.F32

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, ())


@dataclass(frozen=True)
class Apply(WeightExpr):
    """An op with one output applied to constant tensors."""

    op: Op
    args: tuple[WeightExpr, ...]

    @property
    def type(self) -> TensorType:
        (out,) = self.op.infer(*(a.type for a in self.args))
        if not isinstance(out, TensorType):
            raise IRError(f"{self.op.mnemonic()} in a weight expression does not give a tensor")
        return out


@dataclass(frozen=True)
class Weight(Op):
    """A constant tensor."""

    expr: WeightExpr

    def infer(self, *types: Type) -> tuple[Type, ...]:
        tensors(types, 0)
        return (self.expr.type,)


@dataclass(frozen=True)
class Scalar(Op):
    """A constant of rank 0."""

    value: float
    dtype: DType = DType.F32

    def infer(self, *types: Type) -> tuple[Type, ...]:
        tensors(types, 0)
        return (TensorType(self.dtype, ()),)


@dataclass(frozen=True)
class Pack(Op):
    """The same logical matrix, stored for the kernels of a scheme."""

    scheme: Scheme
    order: WeightLayout

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if x.rank != 2:
            raise IRError(f"pack of {x}: expected a matrix")
        return (TensorType(x.dtype, x.shape, Packed(self.scheme, self.order)),)


@dataclass(frozen=True)
class PackScales(Op):
    """The same scales or offsets [N, groups] of a weight, stored for the CPU kernels of a scheme."""

    scheme: Scheme

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if x.rank != 2:
            raise IRError(f"pack_scales of {x}: expected [N, groups]")
        return (TensorType(x.dtype, x.shape, ScalePanels(self.scheme)),)


@dataclass(frozen=True)
class Interleave(Op):
    """Rows of the inputs (all [N, K] or all [N]) in alternating runs of `rows`, each run padded with zero rows.

    With rows 16, a panel of 32 holds 16 rows of the first input, then the same 16 of the second.
    Output [ceil(N/rows) * rows * inputs, K].
    """

    rows: int

    def infer(self, *types: Type) -> tuple[Type, ...]:
        parts = tensors(types, len(types))
        if any(p != parts[0] for p in parts):
            raise IRError(f"interleave of {', '.join(map(str, parts))}: expected equal types")
        (n, *rest) = parts[0].static_shape()
        runs = -(-n // self.rows)
        return (parts[0].with_shape(runs * self.rows * len(parts), *rest),)


@dataclass(frozen=True)
class Quantize(Op):
    """w f32[N, K] rounded to some numbers: their codes, scales or offsets (ir/quantise.py). One op gives the part asked
    for, so that each streams on its own."""

    numbers: Numbers
    part: Part

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if x.rank != 2:
            raise IRError(f"quantize of {x}: expected a matrix")
        return (self.numbers.part_type(self.part, x),)


@dataclass(frozen=True)
class Dequantize(Op):
    """The matrix f32[N, K] that its parts stand for: codes, scales, and offsets where the numbers have them."""

    numbers: Numbers

    def infer(self, *types: Type) -> tuple[Type, ...]:
        parts = tensors(types, len(self.numbers.parts))
        if parts[0].rank != 2 or (misfit := self.numbers.misfit(parts)):
            raise IRError(f"dequantize of {', '.join(map(str, parts))}: {misfit or 'expected matrices'}")
        return (parts[0].with_dtype(DType.F32),)
