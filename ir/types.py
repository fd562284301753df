"""Types of IR values: tensors with a dtype, a shape and (late) a storage layout, and the KV cache state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmc.ir.dims import Dim, Poly


class DType(Enum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I8 = "i8"
    U8 = "u8"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"
    # of quantised weights alone; arrays hold one code to a byte
    I4 = "i4"
    U4 = "u4"
    F4_E2M1 = "f4e2m1"  # OCP's 4-bit float
    NL4 = "nl4"  # an index into 16 integers (ir/codes.py)
    F8_E4M3 = "f8e4m3"  # OCP's 8-bit float without infinities

    @property
    def num_bits(self) -> int:
        """Of a value in memory."""
        return _BITS[self.value]

    @property
    def num_bytes(self) -> int:
        """Of a value in an array: whole bytes."""
        return -(-self.num_bits // 8)

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F16, DType.BF16)

    def holds(self, other: DType) -> bool:
        """Is every value of `other` also a value of this dtype, so that a conversion and back loses nothing?"""
        return self is other or other.value in _HOLDS.get(self.value, ())


_BITS = {
    **{"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "u8": 8, "i32": 32, "i64": 64, "bool": 8},
    **{"i4": 4, "u4": 4, "f4e2m1": 4, "nl4": 4, "f8e4m3": 8},
}
_HOLDS: dict[str, tuple[str, ...]] = {
    "f32": ("f16", "bf16", "i8", "u8", "bool"),
    "f16": ("i8", "u8", "bool"),
    "bf16": ("i8", "u8", "bool"),
    "i64": ("i32", "i8", "u8", "bool"),
    "i32": ("i8", "u8", "bool"),
    "i8": ("bool",),
    "u8": ("bool",),
    "bool": (),
}


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, where that is not as its shape says (ir/formats.py has the kinds)."""


@dataclass(frozen=True)
class TensorType:
    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout | None = None

    def __str__(self) -> str:
        text = f"{self.dtype.value}[{', '.join(str(d) for d in self.shape)}]"
        return f"{text}{{{self.layout}}}" if self.layout else text

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_rowed(self) -> bool:
        """Whether its first axis counts the rows of a step (tokens, or sampled rows); constants have none."""
        return bool(self.shape) and isinstance(self.shape[0], Poly)

    def row_shape(self) -> tuple[int, ...]:
        """The dims of one row, all of them where there are no rows. ValueError when one is symbolic."""
        dims = self.shape[1:] if self.is_rowed else self.shape
        if not all(isinstance(d, int) for d in dims):
            raise ValueError(f"{self} has rows of symbolic width")
        return tuple(d for d in dims if isinstance(d, int))

    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers. ValueError when a dim is symbolic."""
        if not all(isinstance(d, int) for d in self.shape):
            raise ValueError(f"{self} has symbolic dims")
        return tuple(d for d in self.shape if isinstance(d, int))

    def static_row_width(self) -> int:
        """Elements of one row: the product of all dims but the first. ValueError when one is symbolic."""
        width = 1
        for dim in self.shape[1:]:
            if not isinstance(dim, int):
                raise ValueError(f"{self} has rows of symbolic width")
            width *= dim
        return width

    def with_shape(self, *shape: Dim) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


@dataclass(frozen=True)
class CacheType:
    """The KV cache as a state that is threaded through its writes, so that effects are ordered by dataflow."""

    def __str__(self) -> str:
        return "kv"


Type = TensorType | CacheType


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, shape)
