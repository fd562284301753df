"""KV slots as the CPU kernels lay them out (templates/cpu/kv.h)."""

from __future__ import annotations

from llmc.codegen.kv_groups import BLOCK_TOKENS, CacheSlot, Place
from llmc.ir.types import DType


def slot_bytes(slot: CacheSlot) -> int:
    """Of one slot in one block: KvSlot::bytes()."""
    keys = slot.head_dim if slot.dtype is DType.F32 else -(-slot.head_dim // 2) * 2
    values = -(-slot.value_dim // 16) * 16
    return slot.kv_heads * BLOCK_TOKENS * (keys + values) * slot.dtype.num_bytes


def kv_arguments(place: Place) -> tuple[str, str]:
    """The pool and the slot of a kernel call, as C++."""
    slot = place.slot
    kind = "KvF32" if slot.dtype is DType.F32 else "KvBf16"
    shape = f"{place.offset}, {slot.kv_heads}, {slot.head_dim}, {slot.value_dim}"
    return f"s.kv[{place.group}]", f"KvSlot<{kind}>{{{shape}}}"
