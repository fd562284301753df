"""Attention over whole sequences becomes writes to, and reads from, a paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.graph import Builder, Graph, Value, substitute
from llmc.ir.ops.attention import Attention, KvWrite, PagedAttention
from llmc.ir.ops.pointwise import Cast
from llmc.ir.types import CacheType, DType
from llmc.passes.rewrite import RuleLog


@dataclass(frozen=True)
class KvLayout:
    """A slot of the cache for each distinct (k, v), in order of first use; layers that share k and v share a slot.

    Adds input and output %kv. Keys and values are stored in `dtype`. `query`: what attention reads its queries in;
    scores and sums are float32.
    """

    dtype: DType
    query: DType = DType.F32

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        cache = Value(CacheType(), "kv")
        state = cache
        slots: dict[tuple[Value, Value], int] = {}
        replaced: dict[Value, Value] = {}
        b = Builder()
        for node in graph.nodes:
            if not isinstance(node.op, Attention):
                b.nodes.append(node)
                continue
            op = node.op
            q, k, v, positions, seqs, *sinks = node.inputs
            b.loc = node.loc
            if (k, v) not in slots:
                slots[k, v] = len(slots)
                state = b.add(KvWrite(slots[k, v], self.dtype), state, k, v, positions, seqs, name="kv")
            if q.tensor.dtype is not self.query:
                q = b.add(Cast(self.query), q, name=q.name)
            read = PagedAttention(
                slots[k, v],
                op.scale,
                int(str(k.tensor.shape[1])),
                int(str(v.tensor.shape[2])),
                op.mask,
                op.softcap,
                op.has_sinks,
            )
            replaced[node.output] = b.add(read, state, q, positions, seqs, *sinks, name=node.output.name)
            log.applied["kv-layout"] += 1
        graph = Graph(graph.name, (*graph.inputs, cache), (*graph.outputs, state), tuple(b.nodes))
        return substitute(graph, replaced)
