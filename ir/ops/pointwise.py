"""Ops that compute each element from the elements at the same place (numpy broadcasting)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmc.ir.dims import Dim
from llmc.ir.graph import IRError, Op
from llmc.ir.types import DType, TensorType, Type


class UnaryFn(Enum):
    NEG = "neg"
    ABS = "abs"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"  # exact, by erf
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    ERF = "erf"
    SIN = "sin"
    COS = "cos"
    SOFTPLUS = "softplus"
    NOT = "not"


class BinaryFn(Enum):
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    POW = "pow"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"
    AND = "and"
    OR = "or"

    @property
    def commutes(self) -> bool:
        return self in COMMUTATIVE

    @property
    def is_predicate(self) -> bool:
        return self in PREDICATES


COMMUTATIVE = frozenset(
    {
        BinaryFn.ADD,
        BinaryFn.MUL,
        BinaryFn.MAXIMUM,
        BinaryFn.MINIMUM,
        BinaryFn.EQ,
        BinaryFn.NE,
        BinaryFn.AND,
        BinaryFn.OR,
    }
)
PREDICATES = frozenset(
    {BinaryFn.LT, BinaryFn.LE, BinaryFn.GT, BinaryFn.GE, BinaryFn.EQ, BinaryFn.NE, BinaryFn.AND, BinaryFn.OR}
)


@dataclass(frozen=True)
class Unary(Op):
    """fn(x), same type; `not` gives bool."""

    fn: UnaryFn

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        return (TensorType(DType.BOOL if self.fn is UnaryFn.NOT else x.dtype, x.shape),)


@dataclass(frozen=True)
class Binary(Op):
    """fn(a, b) with broadcasting; both have the same dtype, predicates give bool."""

    fn: BinaryFn

    def infer(self, *types: Type) -> tuple[Type, ...]:
        a, b = tensors(types, 2)
        if a.dtype != b.dtype:
            raise IRError(f"{self.fn.value} of {a} and {b}: dtypes differ")
        shape = broadcast(a.shape, b.shape)
        return (TensorType(DType.BOOL if self.fn.is_predicate else a.dtype, shape),)


@dataclass(frozen=True)
class Where(Op):
    """condition ? a : b, elementwise."""

    def infer(self, *types: Type) -> tuple[Type, ...]:
        condition, a, b = tensors(types, 3)
        if condition.dtype != DType.BOOL or a.dtype != b.dtype:
            raise IRError(f"where of {condition}, {a}, {b}: expected bool and two of one dtype")
        return (TensorType(a.dtype, broadcast(condition.shape, broadcast(a.shape, b.shape))),)


@dataclass(frozen=True)
class Cast(Op):
    """Convert to another dtype; floats round to nearest even."""

    dtype: DType

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        return (x.with_dtype(self.dtype),)


def tensors(types: tuple[Type, ...], count: int) -> tuple[TensorType, ...]:
    """Exactly `count` tensor types, or IRError."""
    found = tuple(t for t in types if isinstance(t, TensorType))
    if len(types) != count or len(found) != count:
        raise IRError(f"expected {count} tensors, got {[str(t) for t in types]}")
    return found


def broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The numpy broadcast of two shapes; symbolic dims must be equal or meet a 1."""
    rank = max(len(a), len(b))
    a = (1,) * (rank - len(a)) + a
    b = (1,) * (rank - len(b)) + b
    out = []
    for dim_a, dim_b in zip(a, b, strict=True):
        if dim_a != dim_b and 1 not in (dim_a, dim_b):
            raise IRError(f"shapes {_show(a)} and {_show(b)} do not broadcast: {dim_a} against {dim_b}")
        out.append(dim_b if dim_a == 1 else dim_a)
    return tuple(out)


def _show(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
