"""Attention writes its result as the next linear reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.shape import View
from llmc.passes.rewrite import RuleLog


@dataclass(frozen=True)
class FuseAttention:
    """paged_attention; view [T, Hq * Dv]; cast => paged_attention with joined heads and that result dtype."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        users = graph.users()
        fused: dict[Node, Node] = {}
        absorbed: set[Node] = set()
        for node in graph.nodes:
            if not isinstance(node.op, PagedAttention):
                continue
            op, output = node.op, node.output
            while (step := _step(op, output, graph, users)) is not None:
                op, follower = step
                absorbed.add(follower)
                output = follower.output
                log.applied["fuse-attention-" + follower.op.mnemonic()] += 1
            fused[node] = Node(op, node.inputs, (output,), node.loc)
        nodes = tuple(fused.get(n, n) for n in graph.nodes if n not in absorbed)
        return Graph(graph.name, graph.inputs, graph.outputs, nodes)


def _step(
    op: PagedAttention, output: Value, graph: Graph, users: dict[Value, list[Node]]
) -> tuple[PagedAttention, Node] | None:
    """The attention that takes in the only reader of its output, and that reader; None where there is none such."""
    readers = users.get(output, [])
    if len(readers) != 1 or output in graph.outputs:
        return None
    (reader,) = readers
    match reader.op:
        case View() if reader.output.tensor.rank == 2 and output.tensor.rank == 3:
            tokens, heads, width = output.tensor.shape
            same = isinstance(heads, int) and isinstance(width, int)
            if same and reader.output.tensor.shape == (tokens, heads * width):
                return replace(op, joined=True), reader
        case Cast(dtype) if dtype.is_float and op.result.holds(dtype):
            return replace(op, result=dtype), reader
    return None
