"""How rows of values lie in device memory."""

from __future__ import annotations

from llmc.ir.types import TensorType

ROW_ALIGNMENT = 16  # bytes: kernels read rows in vectors, and TMA wants strides of this


def row_bytes(type_: TensorType) -> int:
    """Bytes from one row of a [T, ...] or [R, ...] value to the next."""
    size = type_.static_row_width() * type_.dtype.num_bytes
    return -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT
