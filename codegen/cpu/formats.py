"""How rows of each type lie in the arena; the twin of `templates/cpu/operand.h`."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.compiler.ir.types import DType, Groups, TensorType


@dataclass(frozen=True)
class RowFormat:
    """`cpp` is the format class of operand.h (or the element type of plain rows)."""

    cpp: str
    row_bytes: int


def row_format(type_: TensorType) -> RowFormat:
    """The format of one row of a [T, ...] value. ValueError for types that no kernel stores."""
    width = type_.static_row_width()
    match type_.dtype, type_.layout:
        case DType.F32, None:
            return RowFormat("F32", 4 * width)
        case DType.I32, None:
            return RowFormat("int32_t", 4 * width)
        case DType.BF16, None:
            return RowFormat("Bf16", _odd_lines(2 * _round_up(width, 32)))
        case DType.I8, Groups(size):
            group = 0 if size == width else size
            padded = _round_up(width, max(group, 64))
            groups = padded // group if group else 1
            return RowFormat(f"Int8<{group}>", _odd_lines(padded + 8 * groups))
    raise ValueError(f"no kernel stores rows of {type_}")


def linear_format(type_: TensorType) -> str:
    """The operand format of a linear that reads rows of this type."""
    return row_format(type_).cpp


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _odd_lines(num_bytes: int) -> int:
    """An odd number of cache lines, so that equal columns of neighbouring rows never share an L1 set."""
    return (-(-num_bytes // 64) | 1) * 64
