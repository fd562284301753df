"""Paged attention -> its launches: chunks and single tokens apart, or single tokens alone."""

from __future__ import annotations

from dataclasses import replace

from llmc.codegen.cuda.attention.forms import attention_forms, numbers_of
from llmc.codegen.cuda.attention.layer import SPLITS_SCRATCH
from llmc.codegen.cuda.attention.params import (
    AttentionParams,
    CombineAttentionParams,
    DecodeAttentionParams,
    PrefillAttentionParams,
)
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.hazards import Access, Span, scratch_span
from llmc.ir.graph import Node
from llmc.ir.ops.attention import PagedAttention

# Rows of sequences with several tokens in the step, and of those with one: no row is both.
CHUNKS, SINGLES = "chunks", "singles"


def attention_calls(node: Node, op: PagedAttention, scope: Scope, decode: bool) -> list[Call]:
    """IRError when no CUDA kernel has such heads."""
    q = node.inputs[1]
    place = scope.kv.places[op.slot]
    cached = place.slot
    slot = CudaKvSlot(cached.kv_heads, cached.head_dim, cached.value_dim, cached.dtype, place.offset)
    forms = attention_forms(op, q.tensor, slot, scope.target)
    numbers, reason = numbers_of(op), "; ".join(forms.reasons)

    def call(params: AttentionParams) -> Call:
        scratch = {} if isinstance(params, PrefillAttentionParams) else {SPLITS_SCRATCH: params.layer.scratch}
        variant = scope.variant(node, params, params.grid, scratch=scratch, numbers=numbers, reason=reason)
        name = f"{op.mnemonic()}{'.combine' * isinstance(params, CombineAttentionParams)}"
        return scope.call(node, scope.symbol(q), [variant], _access(node, params, scope), name)

    return [call(params) for params in (forms.decode if decode else forms.mixed)]


def _access(node: Node, params: AttentionParams, scope: Scope) -> Access:
    whole, partial = scope.values.access(node), (scratch_span(SPLITS_SCRATCH.name),)

    def out(part: str) -> tuple[Span, ...]:
        return tuple(replace(span, part=part) for span in whole.writes)

    match params:
        case PrefillAttentionParams():
            return Access(whole.reads, out(CHUNKS))
        case DecodeAttentionParams():
            return Access(whole.reads, partial)
        case CombineAttentionParams():
            return Access(partial, out(SINGLES))
