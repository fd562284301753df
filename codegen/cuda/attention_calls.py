"""Paged attention -> its launches: one for any mix of tokens; two where every sequence has one token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmc.codegen.cuda.attention import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.attention_layer import Layer, Parameter, split_of
from llmc.codegen.cuda.edges import Access
from llmc.codegen.cuda.launches import COUNTS, Call, Scope, scratch_span, slot_span
from llmc.codegen.kv_groups import KvGroups
from llmc.compiler.ir.graph import IRError, Node
from llmc.compiler.ir.ops.attention import PagedAttention
from llmc.runtime.cuda.plan import Argument

SCRATCH = "attention_splits"


def attention_calls(node: Node, op: PagedAttention, scope: Scope, kv: KvGroups, decode: bool) -> list[Call]:
    """IRError when no CUDA kernel has such heads."""
    _, q, positions, seqs, *sinks = node.inputs
    place = kv.places[op.slot]
    heads = q.tensor.shape[1]
    assert isinstance(heads, int)
    split, why = split_of(place.slot.head_dim, place.slot.value_dim, scope.target)
    try:
        layer = Layer(
            place.slot.dtype,
            heads,
            place.slot.kv_heads,
            place.slot.head_dim,
            place.slot.value_dim,
            split,
            op.mask.window or 0,
            op.mask.chunk or 0,
            op.softcap is not None,
            bool(sinks),
        )
    except ValueError as error:
        raise IRError(f"paged_attention at {node.loc}: {error}") from None
    log2e = math.log2(math.e)
    known = {
        # scores in base 2; capped ones are c * tanh(s / c), see templates/cuda/attention_softmax.cuh
        "base2": Argument("f32", value=log2e * (op.softcap or op.scale)),
        "cap": Argument("f32", value=2 * log2e * op.scale / (op.softcap or 1.0)),
        "q": scope.argument(q),
        "kv": Argument("kv", str(place.group)),
        "block_bytes": Argument("i64", value=kv.groups[place.group].block_bytes),
        "slot_offset": Argument("i64", value=place.offset),
        "counts": COUNTS,
        "tables": Argument("input", f"tables.{place.group}"),
        "positions": scope.argument(positions),
        "seqs": scope.argument(seqs),
        "seq_starts": Argument("input", "seq_starts"),
        "scratch": Argument("scratch", SCRATCH),
        "max_splits": Argument("extent", extent=layer.seen_splits),
        "out": scope.argument(node.output),
    }
    if sinks:
        known["sinks"] = scope.argument(sinks[0])
    rows = scope.symbol(q)
    cache, partial = slot_span(op.slot), scratch_span(SCRATCH)
    reads, writes = (*scope.spans(node.inputs), cache), scope.spans(node.outputs)

    def arguments(parameters: Sequence[Parameter]) -> list[Argument]:
        return [known[p.name] for p in parameters]

    if not decode:
        prefill = PrefillAttentionParams(layer, op.result)
        variant = scope.variant(prefill, prefill.grid, arguments(prefill.parameters), reason=why)
        return [scope.call(node, rows, [variant], Access(reads, writes))]
    splits, combine = DecodeAttentionParams(layer), CombineAttentionParams(layer, op.result)
    first = scope.variant(splits, splits.grid, arguments(splits.parameters), None, {SCRATCH: splits.scratch}, why)
    second = scope.variant(combine, combine.grid, arguments(combine.parameters))
    return [
        scope.call(node, rows, [first], Access(reads, (partial,))),
        scope.call(node, rows, [second], Access((partial,), writes), op=f"{node.op.mnemonic()}.combine"),
    ]
