"""How the rows and weights of each type lie in memory (codegen/packing.py has the formats themselves)."""

from __future__ import annotations

from llmc.codegen.packing import F32, Bf16, Format, Int8, weight_bytes
from llmc.compiler.ir.types import DType, Groups, Panels, TensorType


def operand_format(type_: TensorType) -> Format:
    """The format of operand rows [T, K]. ValueError for types that no kernel stores."""
    match type_.dtype, type_.layout:
        case DType.F32 | DType.BOOL, None:  # a bool is a float 0 or 1
            return F32()
        case DType.BF16, None:
            return Bf16()
        case DType.I8, Groups(size):
            return Int8(size)
    raise ValueError(f"no kernel stores rows of {type_}")


def row_bytes(type_: TensorType) -> int:
    """Bytes between two rows of a [T, ...] value in the arena."""
    width = type_.static_row_width()
    return 4 * width if type_.dtype in (DType.I32, DType.I64) else operand_format(type_).row_bytes(width)


def weight_format(type_: TensorType) -> Format:
    """The format of a weight in panels."""
    if not isinstance(type_.layout, Panels):
        raise ValueError(f"{type_} is not in panels")
    match type_.dtype:
        case DType.F32:
            return F32()
        case DType.BF16:
            return Bf16()
        case DType.I8:
            return Int8(0 if type_.layout.pad == Int8().pad_k(1) else type_.layout.pad)
    raise ValueError(f"no kernel reads a weight {type_}")


def stored_bytes(type_: TensorType) -> int:
    """Bytes of a weight on disk."""
    if type_.layout is not None:
        n, k = type_.static_shape()
        return weight_bytes(weight_format(type_), n, k)
    size = 1
    for dim in type_.static_shape():
        size *= dim
    return size * type_.dtype.num_bytes
