"""KV slots as the CPU kernels lay them out (templates/cpu/kv.h)."""

from __future__ import annotations

from llmc.codegen.kv_groups import BLOCK_TOKENS, CacheSlot, Place
from llmc.codegen.packing import round_up
from llmc.ir.formats import kv_numbers
from llmc.ir.graph import IRError
from llmc.ir.types import DType

_KINDS = {DType.F32: "KvF32", DType.BF16: "KvBf16", DType.I8: "KvInt8", DType.F8_E4M3: "KvFp8"}
SCALE_BYTES = 4
_KEY_STEP = {DType.F32: 1, DType.BF16: 2}  # dims that lie together; else 4
DTYPES = frozenset(_KINDS)


def kind(dtype: DType) -> str:
    """The C++ type of a cache in this dtype. IRError for one that CPU kernels do not keep."""
    if dtype not in _KINDS:
        raise IRError(f"KV cache in {dtype.value}: CPU kernels keep it in {', '.join(d.value for d in _KINDS)}")
    return _KINDS[dtype]


def head_bytes(dtype: DType, dim: int, is_key: bool) -> int:
    """Of one head's key or value of one token: values in vectors of 16, keys in steps; bytes with a float32 scale."""
    step = _KEY_STEP.get(dtype, 4) if is_key else 16
    return round_up(dim, step) * dtype.num_bytes + SCALE_BYTES * (kv_numbers(dtype).group is not None)


def slot_bytes(slot: CacheSlot) -> int:
    """Of one slot in one block: KvSlot::bytes()."""
    token = head_bytes(slot.dtype, slot.head_dim, True) + head_bytes(slot.dtype, slot.value_dim, False)
    return slot.kv_heads * BLOCK_TOKENS * token


def kv_arguments(place: Place) -> tuple[str, str]:
    """The pool and the slot of a kernel call, as C++."""
    slot = place.slot
    shape = f"{place.offset}, {slot.kv_heads}, {slot.head_dim}, {slot.value_dim}"
    return f"s.kv[{place.group}]", f"KvSlot<{kind(slot.dtype)}>{{{shape}}}"
