"""Bytes of values and of the KV cache in a GPU's memory, for the cost model."""

from __future__ import annotations

from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.codegen.cuda.plan.kv import HEAD_STEP
from llmc.codegen.packing import round_up
from llmc.ir.types import DType, Groups, TensorType


class CudaStorage:
    """codegen.work.Storage of CUDA kernels."""

    def row_bytes(self, type_: TensorType) -> int:
        scales = 0
        if isinstance(type_.layout, Groups):
            width = type_.static_row_width()
            scales = 4 * -(-width // (type_.layout.size or width))
        return row_bytes(type_) + scales

    def head_bytes(self, dtype: DType, dim: int, is_key: bool) -> int:
        return round_up(dim, HEAD_STEP) * dtype.num_bytes
