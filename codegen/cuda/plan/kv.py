"""Where keys and values of one attention layer lie in a CUDA cache block: the twin of templates/cuda/kv.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.ir.types import DType

KV_BLOCK = BLOCK_TOKENS
HEAD_STEP = 16  # head dimensions are padded with zeros to whole steps of the MMA
SLOT_ALIGNMENT = 32  # bytes; slots are whole multiples of it, so slots side by side keep it


@dataclass(frozen=True)
class CudaKvSlot:
    """A layer's share of every block: keys [kv_heads][32][padded_head_dim], then values alike, from byte `offset`.

    ValueError when a dim is not positive, the dtype not bf16 or f16, or the offset not a multiple of 32.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType
    offset: int

    def __post_init__(self) -> None:
        if min(self.kv_heads, self.head_dim, self.value_dim) < 1:
            raise ValueError(f"{self}: heads and dims are positive")
        if self.dtype not in (DType.BF16, DType.F16):
            raise ValueError(f"KV cache in {self.dtype.value}: CUDA kernels read bf16 or f16")
        if self.offset < 0 or self.offset % SLOT_ALIGNMENT:
            raise ValueError(f"slot offset {self.offset} is not a multiple of {SLOT_ALIGNMENT} bytes")

    @property
    def padded_head_dim(self) -> int:
        return -(-self.head_dim // HEAD_STEP) * HEAD_STEP

    @property
    def padded_value_dim(self) -> int:
        return -(-self.value_dim // HEAD_STEP) * HEAD_STEP

    @property
    def num_bytes(self) -> int:
        """Of this slot inside one block: where the next slot may start."""
        return self.kv_heads * KV_BLOCK * (self.padded_head_dim + self.padded_value_dim) * self.dtype.num_bytes

    @property
    def cpp(self) -> str:
        """The C++ type; its fields are pool, block_bytes and offset."""
        return f"KvSlot<{self.dtype.value}, {self.kv_heads}, {self.head_dim}, {self.value_dim}>"
