"""Kernel-level graphs of all entries -> CUDA kernels and the launch plans that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import llmc.runtime.cuda.plan as plan
from llmc.codegen.buffers import place_values
from llmc.codegen.cuda.attention.calls import attention_calls
from llmc.codegen.cuda.linear.calls import linear_call
from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.plan.launches import Call, ChosenKernels, Scope, refuse_grid
from llmc.codegen.cuda.row_kernels import row_call
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.hazards import edges
from llmc.codegen.kv_groups import CacheSlot, KvGroups, cache_slots, group_slots
from llmc.codegen.package import cubin_file
from llmc.codegen.weights import PlacedWeight
from llmc.ir.graph import Graph, Node
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.constant import Weight, WeightExpr
from llmc.ir.ops.kernel import PackedLinear, Sample
from llmc.runtime.artifact.manifest import Limits


@dataclass(frozen=True)
class CudaModel:
    """Kernels with their sources, plans by entry, and what the manifest says of memory."""

    kernels: ChosenKernels
    plans: Mapping[str, plan.Plan]
    kv: KvGroups
    arena_per_token: int
    arena_per_row: int


def render(
    entries: Sequence[Graph], weights: Mapping[WeightExpr, PlacedWeight], target: Gpu, limits: Limits
) -> CudaModel:
    """Plans and kernels for one target, for steps within `limits`. IRError names a node that has no CUDA code."""
    kv = group_slots(cache_slots(entries[0]), _slot_bytes)
    kernels = ChosenKernels()
    plans = {g.name: _plan(g, weights, target, limits, kv, kernels) for g in entries}
    per_token = max(p.arena.bytes_per_token for p in plans.values())
    per_row = max(p.arena.bytes_per_row for p in plans.values())
    return CudaModel(kernels, plans, kv, per_token, per_row)


def _plan(
    graph: Graph,
    weights: Mapping[WeightExpr, PlacedWeight],
    target: Gpu,
    limits: Limits,
    kv: KvGroups,
    kernels: ChosenKernels,
) -> plan.Plan:
    names = {n.output: weights[n.op.expr].name for n in graph.nodes if isinstance(n.op, Weight)}
    values = place_values(graph, row_bytes, names)
    decode = graph.name == "decode"
    most = limits.max_batch if decode else limits.max_tokens
    scope = Scope(target, values, kv, {"T": most, "R": most}, kernels)
    calls = [call for node in values.nodes for call in _calls(node, scope, decode)]
    for call in calls:
        refuse_grid(call, plan.Sizes(most, most, min(most, limits.max_batch), limits.max_seq_len))
    after = edges([c.touches for c in calls])
    (sample,) = (n for n in values.nodes if isinstance(n.op, Sample))
    used = dict.fromkeys(v.kernel for c in calls for v in c.launch.variants)
    return plan.Plan(
        entry=graph.name,
        arena=values.arena,
        buffers=values.buffers,
        scratch=kernels.scratch(used),
        kernels={symbol: cubin_file(target.arch, symbol) for symbol in sorted(used)},
        launches=tuple(replace(call.launch, after=a) for call, a in zip(calls, after, strict=True)),
        logits=values.names[sample.inputs[0]],
    )


def _calls(node: Node, scope: Scope, decode: bool) -> list[Call]:
    match node.op:
        case PackedLinear():
            return [linear_call(node, node.op, scope)]
        case PagedAttention():
            return attention_calls(node, node.op, scope, decode)
    return [row_call(node, scope)]


def _slot_bytes(slot: CacheSlot) -> int:
    return CudaKvSlot(slot.kv_heads, slot.head_dim, slot.value_dim, slot.dtype, 0).num_bytes
