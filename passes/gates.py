"""Gated MLPs: two linears of one input whose results meet in pointwise arithmetic, whatever that is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from llmc.ir.graph import Builder, Graph, Node, Value, eliminate_dead_code
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn
from llmc.ir.ops.reduce import GatedLinear, Linear
from llmc.passes.cone import Cone, cones
from llmc.passes.rewrite import RuleLog


@dataclass(frozen=True)
class FuseGates:
    """act(linear(x, a)) * linear(x, b) => gated_linear(x, a, b), for any pointwise way in which the two meet."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        users = graph.users()
        scalars = {n.output: n.op for n in graph.nodes if isinstance(n.op, Scalar)}
        siblings: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            if isinstance(node.op, Linear):
                siblings.setdefault(node.inputs[0], []).append(node)
        fused: dict[Value, Node] = {}
        for group in siblings.values():
            for a, b in combinations(group, 2):
                cone = _meeting(graph, users, a, b)
                if cone is not None and cone.exit not in fused:
                    fused[cone.exit] = _gated(cone, a, b, scalars)
                    log.applied["fuse-gates"] += 1
        nodes = tuple(fused.get(n.outputs[0], n) for n in graph.nodes)
        return eliminate_dead_code(Graph(graph.name, graph.inputs, graph.outputs, nodes))


def _meeting(graph: Graph, users: dict[Value, list[Node]], a: Node, b: Node) -> Cone | None:
    """The smallest cone in which both results end."""
    if a.inputs[1].type != b.inputs[1].type or a.op != b.op:
        return None
    seeds = (a.output, b.output)
    return next((c for c in cones(graph, users, seeds) if all(s in users and s is not c.exit for s in seeds)), None)


def _gated(cone: Cone, a: Node, b: Node, scalars: dict[Value, Scalar]) -> Node:
    builder = Builder()
    results, biased, biases, bias_inputs = [], [], [], []
    for linear, name in ((a, "a"), (b, "b")):
        result = Value(linear.output.type, name)
        results.append(result)
        for bias in linear.inputs[2:]:
            biases.append(bias)
            bias_inputs.append(Value(bias.type, f"bias_{name}"))
            result = builder.add(Binary(BinaryFn.ADD), result, bias_inputs[-1], loc=linear.loc)
        biased.append(result)
    chain, extras = cone.body("gate", biased, scalars)
    inputs = (*results, *bias_inputs, *chain.inputs[2:])
    body = Graph("gate", inputs, chain.outputs, (*builder.nodes, *chain.nodes))
    exit_loc = next(n.loc for n in cone.nodes if n.output is cone.exit)
    operands = (a.inputs[0], a.inputs[1], b.inputs[1], *biases, *extras)
    assert isinstance(a.op, Linear)
    return Node(GatedLinear(body, a.op.scheme), operands, (cone.exit,), exit_loc)
