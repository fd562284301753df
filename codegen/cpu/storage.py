"""Bytes of values and of the KV cache in a CPU's memory, for the cost model."""

from __future__ import annotations

from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.packing import round_up
from llmc.ir.types import DType, TensorType


class CpuStorage:
    """codegen.work.Storage of CPU kernels."""

    def row_bytes(self, type_: TensorType) -> int:
        return row_bytes(type_)

    def head_bytes(self, dtype: DType, dim: int, is_key: bool) -> int:
        """As codegen.cpu.model.KvSlot: values in vectors of 16, keys in pairs unless they are float32."""
        if not is_key:
            return round_up(dim, 16) * dtype.num_bytes
        return (dim if dtype is DType.F32 else round_up(dim, 2)) * dtype.num_bytes
