"""How a weight of each type lies on disk (codegen/packing.py has the formats themselves)."""

from __future__ import annotations

from math import prod

from llmc.codegen.packing import F32, Bf16, Int8, Rows16, WeightFormat, weight_bytes
from llmc.ir.graph import IRError
from llmc.ir.types import DType, Panels, TensorType


def weight_format(type_: TensorType) -> WeightFormat:
    """The format of a packed weight. IRError for a type that no kernel reads."""
    if not isinstance(type_.layout, Panels):
        raise IRError(f"{type_} is not packed")
    match type_.dtype:
        case DType.BF16 | DType.F16 if type_.layout.cols == Rows16.panel:
            return Rows16()
        case DType.F32:
            return F32()
        case DType.BF16:
            return Bf16()
        case DType.I8:
            return Int8(0 if type_.layout.pad == Int8().pad_k(1) else type_.layout.pad)
    raise IRError(f"no kernel reads a weight {type_}")


def stored_bytes(type_: TensorType) -> int:
    """Bytes of a weight on disk."""
    if type_.layout is not None:
        n, k = type_.static_shape()
        return weight_bytes(weight_format(type_), n, k)
    return prod(type_.static_shape()) * type_.dtype.num_bytes
