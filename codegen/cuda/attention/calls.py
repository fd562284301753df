"""Paged attention -> its launches: chunks and single tokens apart, or single tokens alone."""

from __future__ import annotations

from dataclasses import replace

from llmc.codegen.buffers import row_symbol
from llmc.codegen.cuda.attention.forms import attention_forms, numbers_of
from llmc.codegen.cuda.attention.layer import SPLITS_SCRATCH, split_name
from llmc.codegen.cuda.attention.params import (
    AttentionParams,
    CombineAttentionParams,
    DecodeAttentionParams,
    PrefillAttentionParams,
)
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.hazards import Access, Span, scratch_span
from llmc.codegen.preference import Preference
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
    numbers = numbers_of(op)

    def call(params: AttentionParams) -> Call:
        scratch = {} if isinstance(params, PrefillAttentionParams) else {SPLITS_SCRATCH: params.layer.scratch}
        variant = scope.variant(node, params, params.grid, scratch=scratch, numbers=numbers)
        name = f"{op.mnemonic()}{'.combine' * isinstance(params, CombineAttentionParams)}"
        return scope.call(node, row_symbol(q.tensor), [variant], _access(node, params, scope), name)

    calls = [call(params) for params in (forms.decode if decode else forms.mixed)]
    heads = f"{forms.decode[0].layer.q_heads} heads of {slot.head_dim}, {slot.kv_heads} of keys and values"
    where = "" if op.mask.window is None else f", window {op.mask.window}"
    reason = f"{forms.split.reason}: {forms.how}"
    kernels = tuple(variant.kernel for made in calls for variant in made.launch.variants)
    scope.kernels.prefer(
        Preference(op.mnemonic(), heads + where, split_name(forms.split.keys), reason, forms.split.rejected, kernels)
    )
    return calls


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
