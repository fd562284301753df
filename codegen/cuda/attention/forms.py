"""The launches of one attention op: which kernels, over which grid, on which arguments, and why.

Any form may take any sequence, as all give the same bits (templates/cuda/attention_softmax.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from llmc.runtime.cuda.plan import Argument, Extent

LOG2_E = math.log2(math.e)
SCRATCH = "attention"  # the scratch that all attention of an entry shares
OPERANDS = ("q", "out", "sinks")  # what the caller names: buffers of the plan, and a weight where the op has sinks
INPUTS = ("counts", "positions", "seqs", "seq_starts")  # of the step, by these names


@dataclass(frozen=True)
class AttentionLaunch:
    """One kernel call. `scratch`: bytes of SCRATCH that it touches, None for none.

    reads_cache: it reads queries and the slot; writes: "out" or "scratch", which the next launch of the form reads.
    """

    params: AttentionParams
    grid: tuple[Extent, ...]
    arguments: tuple[Argument, ...]
    reads_cache: bool
    writes: str
    scratch: Extent | None


@dataclass(frozen=True)
class AttentionForms:
    """Ways to run one op, each a sequence of launches, the next after the one before.

    prefill: any sequences. decode: sequences with one token in the step; others are passed over. mixed: prefill for
    sequences of several tokens, decode for the others, so that in a step of chunks and single tokens no block sweeps
    one long context after the other; its first launch is independent of the other two.
    split: what all of them cut a sequence into; how: the forms in words, for the build's report.
    """

    prefill: tuple[AttentionLaunch, ...]
    decode: tuple[AttentionLaunch, ...]
    mixed: tuple[AttentionLaunch, ...]
    split: Split
    how: str


def attention_forms(
    op: PagedAttention,
    q: TensorType,
    slot: CudaKvSlot,
    group: int,
    block_bytes: int,
    target: CudaTarget,
    operands: Mapping[str, Argument],
) -> AttentionForms:
    """The forms of `op` on queries of type `q` [T, Hq, D].

    slot: of the op in blocks of `block_bytes` of that KV group's pool. operands: the arguments that stand for OPERANDS.
    IRError where slot and op do not agree, or no kernel takes such heads.
    """
    layer, split = _layer(op, q, slot, target)
    known = {**operands, **_numbers(op, layer, slot, group, block_bytes)}
    decode, combine = DecodeAttentionParams(layer), CombineAttentionParams(layer, op.result)

    def launch(p: AttentionParams) -> AttentionLaunch:
        if why := p.rejects(target):
            raise IRError(f"{op} on {q}: {p.template}: {why}")
        arguments = tuple(known[parameter.name] for parameter in p.parameters)
        scratch = None if isinstance(p, PrefillAttentionParams) else decode.scratch
        writes = "scratch" if isinstance(p, DecodeAttentionParams) else "out"
        return AttentionLaunch(p, p.grid, arguments, not isinstance(p, CombineAttentionParams), writes, scratch)

    splits = (launch(decode), launch(combine))
    return AttentionForms(
        (launch(PrefillAttentionParams(layer, op.result)),),
        splits,
        (launch(PrefillAttentionParams(layer, op.result, min_tokens=2)), *splits),
        split,
        f"prefill: tiles of 64 rows, {layer.group} query heads of a token side by side, by mma.sync; "
        f"decode: a block per sequence, KV head and split, {decode.scratch.times} B of scratch per sequence"
        + ("" if layer.window or layer.chunk else " and split"),
    )


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


def _numbers(op: PagedAttention, layer: Layer, slot: CudaKvSlot, group: int, block_bytes: int) -> dict[str, Argument]:
    """Every argument that the op itself decides: a score is q.k, or its tanh where scores are capped."""
    cap = op.softcap or 0.0
    return {
        **{name: Argument("input", name) for name in INPUTS},
        "tables": Argument("input", f"tables.{group}"),
        "kv": Argument("kv", str(group)),
        "block_bytes": Argument("i64", value=block_bytes),
        "slot_offset": Argument("i64", value=slot.offset),
        "scratch": Argument("scratch", SCRATCH),
        "max_splits": Argument("extent", extent=layer.seen_splits),
        "base2": Argument("f32", value=(cap or op.scale) * LOG2_E),
        "cap": Argument("f32", value=op.scale / cap * 2 * LOG2_E if cap else 0.0),
    }
