"""Paged attention -> its launches: chunks and single tokens apart, or single tokens alone."""

from __future__ import annotations

from dataclasses import replace

from llmc.codegen.cuda.attention.forms import SCRATCH, AttentionLaunch, attention_forms
from llmc.codegen.cuda.attention.layer import split_name
from llmc.codegen.cuda.attention.params import CombineAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.plan.edges import Access, Span
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.plan.launches import Call, Scope, scratch_span, slot_span
from llmc.codegen.kv_groups import KvGroups
from llmc.codegen.preference import Preference
from llmc.ir.graph import Node
from llmc.ir.ops.attention import PagedAttention

# Rows of sequences with several tokens in the step, and of those with one: no row is both.
CHUNKS, SINGLES = "chunks", "singles"


def attention_calls(node: Node, op: PagedAttention, scope: Scope, kv: KvGroups, decode: bool) -> list[Call]:
    """IRError when no CUDA kernel has such heads."""
    _, q, _, _, *sinks = node.inputs
    place = kv.places[op.slot]
    cached = place.slot
    slot = CudaKvSlot(cached.kv_heads, cached.head_dim, cached.value_dim, cached.dtype, place.offset)
    operands = {"q": scope.argument(q), "out": scope.argument(node.output)}
    if sinks:
        operands["sinks"] = scope.argument(sinks[0])
    block_bytes = kv.groups[place.group].block_bytes
    forms = attention_forms(op, q.tensor, slot, place.group, block_bytes, scope.target, operands)
    partial = (scratch_span(SCRATCH),)

    def access(launch: AttentionLaunch) -> Access:
        if launch.writes == "scratch":
            return Access((*scope.spans(node.inputs), slot_span(op.slot)), partial)
        chunks = isinstance(launch.params, PrefillAttentionParams)
        out = tuple(_part(span, CHUNKS if chunks else SINGLES) for span in scope.spans(node.outputs))
        return Access((*scope.spans(node.inputs), slot_span(op.slot)) if chunks else partial, out)

    def call(launch: AttentionLaunch) -> Call:
        scratch = {SCRATCH: launch.scratch} if launch.scratch else {}
        variant = scope.variant(launch.params, launch.grid, launch.arguments, None, scratch)
        combines = isinstance(launch.params, CombineAttentionParams)
        name = f"{node.op.mnemonic()}{'.combine' * combines}"
        return scope.call(node, scope.symbol(q), [variant], access(launch), name)

    calls = [call(launch) for launch in (forms.decode if decode else forms.mixed)]
    heads = f"{forms.decode[0].params.layer.q_heads} heads of {slot.head_dim}, {slot.kv_heads} of keys and values"
    where = "" if op.mask.window is None else f", window {op.mask.window}"
    reason = f"{forms.split.reason}: {forms.how}"
    kernels = tuple(variant.kernel for made in calls for variant in made.variants)
    scope.kernels.prefer(
        Preference(
            node.op.mnemonic(), heads + where, split_name(forms.split.keys), reason, forms.split.rejected, kernels
        )
    )
    return calls


def _part(span: Span, part: str) -> Span:
    return replace(span, part=part)
