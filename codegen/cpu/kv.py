"""KV slots as the CPU kernels lay them out (templates/cpu/kv.h)."""

from __future__ import annotations

from llmc.codegen.kv_groups import BLOCK_TOKENS, CacheSlot, Place
from llmc.codegen.packing import round_up
from llmc.ir.graph import IRError
from llmc.ir.types import DType

_KINDS = {DType.F32: "KvF32", DType.BF16: "KvBf16"}


def kind(dtype: DType) -> str:
    """The C++ type of a cache in this dtype. IRError for one that CPU kernels do not keep."""
    if dtype not in _KINDS:
        raise IRError(f"KV cache in {dtype.value}: CPU kernels keep it in {', '.join(d.value for d in _KINDS)}")
    return _KINDS[dtype]


def head_bytes(dtype: DType, dim: int, is_key: bool) -> int:
    """Of one head's key or value of one token: values in vectors of 16, keys in pairs unless they are float32."""
    step = 16 if not is_key else 1 if dtype is DType.F32 else 2
    return round_up(dim, step) * dtype.num_bytes


def slot_bytes(slot: CacheSlot) -> int:
    """Of one slot in one block: KvSlot::bytes()."""
    token = head_bytes(slot.dtype, slot.head_dim, True) + head_bytes(slot.dtype, slot.value_dim, False)
    return slot.kv_heads * BLOCK_TOKENS * token


def kv_arguments(place: Place) -> tuple[str, str]:
    """The pool and the slot of a kernel call, as C++."""
    slot = place.slot
    shape = f"{place.offset}, {slot.kv_heads}, {slot.head_dim}, {slot.value_dim}"
    return f"s.kv[{place.group}]", f"KvSlot<{kind(slot.dtype)}>{{{shape}}}"
