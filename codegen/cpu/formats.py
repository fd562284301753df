"""What CPU kernels are compiled for: the C++ types of linears, weights and rows (templates/cpu/operand.h), from the
number formats of types (ir/formats.py); and how far rows lie apart."""

from __future__ import annotations

from llmc.codegen.packing import OperandRows
from llmc.ir.formats import Numbers, Packed, Part, Scheme, WeightLayout, row_numbers
from llmc.ir.graph import IRError
from llmc.ir.types import DType, TensorType

MAX_PARTS = len(Part)  # arrays of a weight
_ROWS = {DType.F32: "F32", DType.BF16: "Bf16", DType.I8: "Int8<{group}>"}
_CODES = {
    DType.I8: "S8",
    DType.I4: "S4",
    DType.U4: "U4",
    DType.F4_E2M1: "E2M1",
    DType.NL4: "NL4",
    DType.F8_E4M3: "E4M3",
}
_SCALES = {None: "None", DType.F32: "float", DType.F16: "Half", DType.BF16: "Brain", DType.I8: "int8_t"}


def kernel_type(scheme: Scheme) -> str | None:
    """What linears of a scheme, and embeddings in their weights, are compiled for; None where there is no kernel."""
    weight = scheme.weight
    if weight.group is None:
        return _ROWS.get(weight.element)
    rows = _ROWS[scheme.operand.element].format(group=scheme.operand.group)
    if scheme.operand.element is DType.I8 and weight == Scheme.INT8.weight:
        return rows
    return f"Quant<{_CODES[weight.element]}, {weight.group}, {_SCALES[weight.scale]}, {_SCALES[weight.offset]}, {rows}>"


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
