"""How the rows and weights of each type lie in memory (codegen/packing.py has the formats themselves)."""

from __future__ import annotations

from llmc.codegen.packing import F32, Bf16, Format, Int8, Rows16
from llmc.codegen.weight_formats import weight_format
from llmc.ir.graph import IRError
from llmc.ir.types import DType, Groups, TensorType


def operand_format(type_: TensorType) -> Format:
    """The format of operand rows [T, K]. IRError for types that no kernel stores."""
    match type_.dtype, type_.layout:
        case DType.F32 | DType.BOOL, None:  # a bool is a float 0 or 1
            return F32()
        case DType.BF16, None:
            return Bf16()
        case DType.I8, Groups(size):
            return Int8(size)
    raise IRError(f"no kernel stores rows of {type_}")


def row_bytes(type_: TensorType) -> int:
    """Bytes between two rows of a [T, ...] value in the arena."""
    width = type_.static_row_width()
    return 4 * width if type_.dtype in (DType.I32, DType.I64) else operand_format(type_).row_bytes(width)


def panel_format(type_: TensorType) -> Format:
    """The format of a weight in panels, as the embedding reads it."""
    found = weight_format(type_)
    if isinstance(found, Rows16):
        raise IRError(f"{type_} lies in rows, CPU kernels read panels")
    return found
