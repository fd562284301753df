"""Attention before and after it reads from the KV cache, and the cache's ordered writes."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.graph import IRError, Op
from llmc.ir.ops.pointwise import tensors
from llmc.ir.types import CacheType, DType, TensorType, Type


@dataclass(frozen=True)
class Mask:
    """Which positions j a query at i may see: j <= i, and i - j < window, and i // chunk == j // chunk."""

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class MaskDescriptor(Op):
    """A mask as HF's modeling code asks for it, bool [B, 1, S, S]; folded into the attention that reads it."""

    mask: Mask

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (ids,) = tensors(types, 1)
        batch, seq = ids.shape
        return (TensorType(DType.BOOL, (batch, 1, seq, seq)),)


@dataclass(frozen=True)
class Attention(Op):
    """softmax(softcap(q k^T * scale) + mask) v over whole sequences, in float32; `softcap(s)` is c*tanh(s/c).

    Batched: q [B, Hq, S, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv] -> [B, S, Hq, Dv] (the order HF's hook returns).
    Ragged:  q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv], positions i32[T], seqs i32[T] -> [T, Hq, Dv].
    Hq is a multiple of Hkv; q head h reads kv head h // (Hq/Hkv). With sinks f32[Hq] as last input, each softmax has
    one more logit that only takes weight away.
    """

    scale: float
    mask: Mask = Mask()
    softcap: float | None = None
    has_sinks: bool = False

    def infer(self, *types: Type) -> tuple[Type, ...]:
        q, k, v, *rest = tensors(types, len(types))
        ragged = q.rank == 3
        if len(rest) != self.has_sinks + 2 * ragged or not q.rank == k.rank == v.rank or q.rank not in (3, 4):
            raise IRError(f"attention of {', '.join(map(str, types))}: see its docstring for the inputs")
        heads_q, heads_kv = q.shape[1], k.shape[1]
        if not isinstance(heads_q, int) or not isinstance(heads_kv, int) or heads_q % heads_kv:
            raise IRError(f"attention of q {q} on k {k}: q heads are not a multiple of kv heads")
        if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
            raise IRError(f"attention of q {q}, k {k}, v {v}: shapes do not fit")
        if ragged:
            return (q.with_shape(q.shape[0], heads_q, v.shape[-1]),)
        return (q.with_shape(q.shape[0], q.shape[2], heads_q, v.shape[-1]),)


@dataclass(frozen=True)
class KvWrite(Op):
    """cache, k [T, Hkv, D], v [T, Hkv, Dv], positions i32[T], seqs i32[T] -> cache with these positions of `slot` set.

    Values are stored in `dtype`, rounded to nearest even: int8 and fp8 with a scale for each head of each position
    (`kv_numbers` of ir/formats.py).
    """

    slot: int
    dtype: DType = DType.F32

    def infer(self, *types: Type) -> tuple[Type, ...]:
        if not types or not isinstance(types[0], CacheType):
            raise IRError(f"kv_write of {', '.join(map(str, types))}: expected the cache first")
        k, v, positions, seqs = tensors(types[1:], 4)
        if k.rank != 3 or k.shape[:2] != v.shape[:2] or positions.shape != seqs.shape:
            raise IRError(f"kv_write of {k}, {v}, {positions}, {seqs}: shapes do not fit")
        return (CacheType(),)


@dataclass(frozen=True)
class PagedAttention(Op):
    """Attention of q [T, Hq, D] on the positions of `slot` in the cache (the step's own are written before).

    cache, q, positions i32[T], seqs i32[T], then sinks f32[Hq] if any -> [T, Hq, value_dim], or with `joined` heads
    [T, Hq * value_dim], as `result` says, rounded to nearest even.
    """

    slot: int
    scale: float
    num_kv_heads: int
    value_dim: int
    mask: Mask = Mask()
    softcap: float | None = None
    has_sinks: bool = False
    result: DType = DType.F32
    joined: bool = False

    def infer(self, *types: Type) -> tuple[Type, ...]:
        if not types or not isinstance(types[0], CacheType):
            raise IRError(f"paged_attention of {', '.join(map(str, types))}: expected the cache first")
        q, positions, seqs, *_ = tensors(types[1:], 3 + self.has_sinks)
        if q.rank != 3 or positions.shape != (q.shape[0],) or seqs.shape != positions.shape:
            raise IRError(f"paged_attention of {q}, {positions}, {seqs}: expected [T, Hq, D] and two [T]")
        tokens, heads, _ = q.shape
        if not isinstance(heads, int):
            raise IRError(f"paged_attention of q {q}: how many heads?")
        shape = (tokens, heads * self.value_dim) if self.joined else (tokens, heads, self.value_dim)
        return (TensorType(self.result, shape),)
