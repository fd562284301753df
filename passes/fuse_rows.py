"""Everything between two linears or attentions that works row by row becomes one kernel.

A *barrier* is a node that is a kernel of its own (a packed linear, attention, a RowKernel such as sampling). The stage
of a node is the number of barriers on the longest path before it. Row-wise nodes of one stage and one kind of row (all
tokens, or the sampled ones) form one `rows` node: norms, residuals, quantisation, RoPE and cache writes need no rule
per combination.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.dims import Dim
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.attention import KvWrite, PagedAttention
from llmc.ir.ops.constant import Scalar, Weight
from llmc.ir.ops.kernel import PackedLinear, RowKernel, Rows
from llmc.ir.types import CacheType, TensorType
from llmc.passes.rewrite import RuleLog

BARRIERS = (PackedLinear, PagedAttention, RowKernel)
CONSTANTS = (Weight, Scalar)


@dataclass(frozen=True)
class FuseRows:
    """Group row-wise nodes into `rows` nodes, and order the graph by stage."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        producers, users = graph.producers(), graph.users()
        stage_of = _stages(graph)
        groups: dict[tuple[int, str], list[Node]] = {}
        barriers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            if isinstance(node.op, BARRIERS):
                barriers.setdefault(stage_of[node], []).append(node)
            elif not isinstance(node.op, CONSTANTS):
                groups.setdefault((stage_of[node], str(_row_dim(node, graph))), []).append(node)
        nodes = [n for n in graph.nodes if isinstance(n.op, Weight)]
        for stage in range(max(stage_of.values(), default=0) + 1):
            ready = [group for (s, _), group in groups.items() if s == stage]
            for group in _in_order(ready):
                nodes.append(_rows(group, graph, producers, users))
                log.applied["fuse-rows"] += 1
            nodes += barriers.get(stage, [])
        return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes))


def _stages(graph: Graph) -> dict[Node, int]:
    value_stage: dict[Value, int] = {}
    stages: dict[Node, int] = {}
    for node in graph.nodes:
        stage = max((value_stage.get(v, 0) for v in node.inputs), default=0)
        stages[node] = stage
        for value in node.outputs:
            value_stage[value] = stage + isinstance(node.op, BARRIERS)
    return stages


def _row_dim(node: Node, graph: Graph) -> Dim:
    """The symbol that counts the rows a row-wise node works on."""
    op = node.op
    values = node.inputs[1:3] if isinstance(op, KvWrite) else node.outputs
    for value in values:
        if isinstance(value.type, TensorType) and value.type.is_rowed:
            return value.type.shape[0]
    raise IRError(f"graph {graph.name}: {op.mnemonic()} at {node.loc} gives {values[0].type}, which has no rows")


def _in_order(groups: list[list[Node]]) -> list[list[Node]]:
    """Groups of one stage so that each comes after those it reads from."""
    ordered: list[list[Node]] = []
    waiting = list(groups)
    while waiting:
        pending = {v for g in waiting for n in g for v in n.outputs}
        for group in waiting:
            own = {v for n in group for v in n.outputs}
            if not any(v in pending - own for n in group for v in n.inputs):
                ordered.append(group)
                waiting.remove(group)
                break
        else:
            raise IRError("groups of rows read from each other: one of their nodes mixes rows")
    return ordered


def _rows(group: list[Node], graph: Graph, producers: dict[Value, Node], users: dict[Value, list[Node]]) -> Node:
    own = {v for n in group for v in n.outputs}
    scalars: dict[Value, Node] = {}
    inputs: dict[Value, Value] = {}
    for node in group:
        for value in node.inputs:
            source = producers.get(value)
            if source is not None and isinstance(source.op, Scalar):
                scalars[value] = source
            elif value not in own and value not in inputs:
                inputs[value] = Value(value.type, value.name)
    inside = set(group)
    leaving = [
        v
        for n in group
        for v in n.outputs
        if v in graph.outputs or any(u not in inside for u in users.get(v, [])) or isinstance(v.type, CacheType)
    ]
    new_of: dict[Value, Value] = dict(inputs)
    nodes: list[Node] = []
    for source in (*scalars.values(), *group):
        outputs = tuple(Value(v.type, v.name) for v in source.outputs)
        nodes.append(Node(source.op, tuple(new_of[v] for v in source.inputs), outputs, source.loc))
        new_of.update(zip(source.outputs, outputs, strict=True))
    body = Graph("rows", tuple(inputs.values()), tuple(new_of[v] for v in leaving), tuple(nodes))
    locs = " + ".join(dict.fromkeys(n.loc for n in group if n.loc))
    return Node(Rows(body), tuple(inputs), tuple(leaving), locs)
