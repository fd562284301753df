"""Bytes of values and of the KV cache in a CPU's memory, for the cost model."""

from __future__ import annotations

from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.cpu.kv import head_bytes
from llmc.ir.types import DType, TensorType


class CpuStorage:
    """codegen.work.Storage of CPU kernels."""

    def row_bytes(self, type_: TensorType) -> int:
        return row_bytes(type_)

    def head_bytes(self, dtype: DType, dim: int, is_key: bool) -> int:
        return head_bytes(dtype, dim, is_key)
