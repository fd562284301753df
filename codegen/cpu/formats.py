"""What CPU kernels are compiled for: the C++ types of linears, weights and rows (templates/cpu/operand.h), from the
number formats of types (ir/formats.py); and how far rows lie apart."""

from __future__ import annotations

from llmc.codegen.packing import OperandRows
from llmc.ir.formats import Numbers, Packed, Scheme, WeightLayout, row_numbers
from llmc.ir.graph import IRError
from llmc.ir.types import DType, TensorType

_ROWS = {DType.F32: "F32", DType.BF16: "Bf16", DType.I8: "Int8<{group}>"}


def kernel_type(scheme: Scheme) -> str | None:
    """What linears of a scheme, and embeddings in their weights, are compiled for; None where there is no kernel."""
    weight, operand = scheme.weight, scheme.operand
    if weight.group is None:
        return _ROWS.get(weight.element)
    if weight == Scheme.INT8.weight and operand.element is DType.I8:
        return _ROWS[DType.I8].format(group=operand.group)
    return None


def linear_type(scheme: Scheme) -> str:
    """The kernel's type. IRError where there is none."""
    found = kernel_type(scheme)
    if found is None:
        raise IRError(f"no CPU kernel multiplies in {scheme}")
    return found


def table_type(type_: TensorType) -> str:
    """What reads a packed weight, as a linear or an embedding, is compiled for."""
    if not isinstance(type_.layout, Packed) or type_.layout.order is not WeightLayout.PANELS:
        raise IRError(f"{type_} is not in panels, which CPU kernels read: leave layout out of lower-linears")
    return linear_type(type_.layout.scheme)


def operand_type(type_: TensorType) -> str:
    """What the rows [T, K] that a linear reads are written by."""
    numbers = _numbers(type_)
    return _ROWS[numbers.element].format(group=numbers.group)


def row_bytes(type_: TensorType) -> int:
    """Bytes between two rows of a [T, ...] value in the arena."""
    width = type_.static_row_width()
    return 4 * width if type_.dtype in (DType.I32, DType.I64) else OperandRows(_numbers(type_)).row_bytes(width)


def _numbers(type_: TensorType) -> Numbers:
    """IRError for types that no kernel stores rows of."""
    numbers = Numbers(DType.F32) if type_.dtype is DType.BOOL else row_numbers(type_)  # a bool is a float 0 or 1
    if numbers.element not in _ROWS or (numbers.group is None) != (numbers.element is not DType.I8):
        raise IRError(f"no kernel stores rows of {type_}")
    return numbers
