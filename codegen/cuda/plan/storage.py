"""Bytes of values and of the KV cache in a GPU's memory, for the cost model."""

from __future__ import annotations

from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.codegen.cuda.plan.kv import HEAD_STEP
from llmc.codegen.packing import round_up
from llmc.ir.formats import row_numbers
from llmc.ir.types import DType, TensorType


class CudaStorage:
    """codegen.work.Storage of CUDA kernels."""

    def row_bytes(self, type_: TensorType) -> int:
        return row_bytes(type_) + 4 * row_numbers(type_).num_scales(type_.static_row_width())

    def head_bytes(self, dtype: DType, dim: int, is_key: bool) -> int:
        return round_up(dim, HEAD_STEP) * dtype.num_bytes
