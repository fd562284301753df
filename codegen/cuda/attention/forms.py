"""The kernels of one attention op, in each of its forms, and why.

Any form may take any sequence, as all give the same bits (templates/cuda/attention_softmax.cuh).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmc.codegen.cuda.attention.layer import Layer, Split, split_of
from llmc.codegen.cuda.attention.params import (
    AttentionParams,
    CombineAttentionParams,
    DecodeAttentionParams,
    PrefillAttentionParams,
)
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.ir.graph import IRError
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.types import TensorType

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class AttentionForms:
    """Ways to run one op, each a sequence of kernels, the next after the one before.

    prefill: any sequences. decode: sequences with one token in the step; others are passed over. mixed: prefill for
    sequences of several tokens, decode for the others, so that in a step of chunks and single tokens no block sweeps
    one long context after the other; its first kernel is independent of the other two.
    split: what all of them cut a sequence into; how: the forms in words, for the build's report.
    """

    prefill: tuple[AttentionParams, ...]
    decode: tuple[AttentionParams, ...]
    mixed: tuple[AttentionParams, ...]
    split: Split
    how: str


def attention_forms(op: PagedAttention, q: TensorType, slot: CudaKvSlot, target: CudaTarget) -> AttentionForms:
    """The forms of `op` on queries of type `q` [T, Hq, D], over its slot.

    IRError where slot and op do not agree, or no kernel takes such heads.
    """
    layer, split = _layer(op, q, slot, target)
    prefill, chunks = (PrefillAttentionParams(layer, op.result, least) for least in (1, 2))
    splits = (DecodeAttentionParams(layer), CombineAttentionParams(layer, op.result))
    for params in (prefill, chunks, *splits):
        if why := params.rejects(target):
            raise IRError(f"{op} on {q}: {params.template}: {why}")
    return AttentionForms(
        (prefill,),
        splits,
        (chunks, *splits),
        split,
        f"prefill: tiles of 64 rows, {layer.group} query heads of a token side by side, by mma.sync; "
        f"decode: a block per sequence, KV head and split, {layer.scratch.times} B of scratch per sequence"
        + ("" if layer.window or layer.chunk else " and split"),
    )


def numbers_of(op: PagedAttention) -> dict[str, float]:
    """What its kernels are passed: a score is q.k, or its tanh where scores are capped."""
    cap = op.softcap or 0.0
    return {"base2": (cap or op.scale) * LOG2_E, "cap": op.scale / cap * 2 * LOG2_E if cap else 0.0}


def _layer(op: PagedAttention, q: TensorType, slot: CudaKvSlot, target: CudaTarget) -> tuple[Layer, Split]:
    _, heads, dim = q.shape
    if not isinstance(heads, int) or not isinstance(dim, int):
        raise IRError(f"{op} on {q}: heads and head_dim must be numbers")
    expected = (op.num_kv_heads, dim, op.value_dim, q.dtype)
    if expected != (slot.kv_heads, slot.head_dim, slot.value_dim, slot.dtype):
        raise IRError(f"{op} on {q}: its slot is {slot}, expected heads, dims and dtype {expected}")
    if not op.scale > 0:
        raise IRError(f"{op}: scale {op.scale} is not positive")
    split = split_of(dim, op.value_dim, target)
    try:
        layer = Layer(
            q.dtype,
            heads,
            op.num_kv_heads,
            dim,
            op.value_dim,
            split.keys,
            op.mask.window or 0,
            op.mask.chunk or 0,
            op.softcap is not None,
            op.has_sinks,
        )
    except ValueError as error:
        raise IRError(f"{op} on {q}: {error}") from None
    return layer, split
