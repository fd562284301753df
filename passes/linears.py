"""Linears brought to one form, and those that read the same input joined."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.formats import Scheme
from llmc.ir.graph import Builder, Graph, Node, Value, substitute
from llmc.ir.ops.constant import Apply, Literal, Weight, WeightExpr
from llmc.ir.ops.reduce import Linear, MatMul
from llmc.ir.ops.shape import Concat, Expand, Permute, Slice
from llmc.ir.types import DType
from llmc.passes.pattern import Match, Var, add, op
from llmc.passes.rewrite import RuleLog, apply_rules, rule

JOINED = " + "  # between the paths of modules whose linears are one
X, W, BIAS = Var("x"), Var("w"), Var("bias")


@rule("matmul(x, w) of a constant w => linear(x, transpose(w))", op(MatMul, X, op(Weight, name="weight")))
def constant_matmul(m: Match, b: Builder) -> Value | None:
    expr = m.op("weight", Weight).expr
    if expr.type.rank != 2 or m.root.output.tensor.dtype is not DType.F32:
        return None  # a linear gives float32
    return b.add(Linear(), m.values["x"], b.add(Weight(Apply(Permute((1, 0)), (expr,)))))


@rule(
    "linear(x, w) + b of a constant b => linear(x, w, b)", add(op(Linear, X, W, name="linear"), op(Weight, name="bias"))
)
def add_bias(m: Match, b: Builder) -> Value | None:
    bias = m.nodes["bias"].output
    if bias.tensor.shape != m.values["w"].tensor.shape[:1]:
        return None
    return b.add(Linear(), m.values["x"], m.values["w"], bias)


@rule(
    "slice(linear(x, w)) of the last axis => linear(x, slice(w))",
    op(Slice, op(Linear, X, op(Weight, name="weight"), name="linear"), name="slice"),
    op(Slice, op(Linear, X, op(Weight, name="weight"), op(Weight, name="bias"), name="linear"), name="slice"),
)
def slice_of_linear(m: Match, b: Builder) -> Value | None:
    cut = m.op("slice", Slice)
    if cut.axis != m.nodes["linear"].output.tensor.rank - 1:
        return None
    rows = Slice(0, cut.start, cut.stop, cut.step)
    constants = [m.op(name, Weight).expr for name in ("weight", "bias") if name in m.nodes]
    return b.add(Linear(), m.values["x"], *(b.add(Weight(Apply(rows, (c,)))) for c in constants))


RULES = [*constant_matmul, *add_bias, *slice_of_linear]


@dataclass(frozen=True)
class RaiseLinears:
    """Products with constant matrices become linears; parts of a linear become linears of parts of its weight."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return apply_rules(graph, RULES, log)


@dataclass(frozen=True)
class FuseLinears:
    """Linears of one input and scheme become one linear of the stacked weights, followed by slices (q, k, v)."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        constants = {n.output: n.op.expr for n in graph.nodes if isinstance(n.op, Weight)}
        groups: dict[tuple[Value, DType, DType, Scheme | None], list[Node]] = {}
        for node in graph.nodes:
            if isinstance(node.op, Linear) and all(v in constants for v in node.inputs[1:]):
                x, w, *bias = node.inputs
                kind = w.tensor.dtype, bias[0].tensor.dtype if bias else DType.F32, node.op.scheme
                groups.setdefault((x, *kind), []).append(node)
        fused: dict[Node, list[Node]] = {g[0]: g for g in groups.values() if len(g) > 1}
        builder = Builder()
        replaced: dict[Value, Value] = {}
        for node in graph.nodes:
            builder.nodes.append(node)
            if node in fused:
                self._fuse(fused[node], constants, builder, replaced)
                log.applied["fuse-linears"] += 1
        return substitute(Graph(graph.name, graph.inputs, graph.outputs, tuple(builder.nodes)), replaced)

    def _fuse(
        self, group: list[Node], constants: dict[Value, WeightExpr], b: Builder, replaced: dict[Value, Value]
    ) -> None:
        b.loc = JOINED.join(dict.fromkeys(n.loc for n in group))
        widths = [n.inputs[1].tensor.static_shape()[0] for n in group]
        stacked = [Apply(Concat(0), tuple(constants[n.inputs[1]] for n in group))]
        if any(len(n.inputs) == 3 for n in group):
            biases = [
                constants[n.inputs[2]] if len(n.inputs) == 3 else _zeros(w) for n, w in zip(group, widths, strict=True)
            ]
            stacked.append(Apply(Concat(0), tuple(biases)))
        whole = b.add(group[0].op, group[0].inputs[0], *(b.add(Weight(s)) for s in stacked))
        start = 0
        for node, width in zip(group, widths, strict=True):
            replaced[node.output] = b.add(Slice(whole.tensor.rank - 1, start, start + width), whole, loc=node.loc)
            start += width


def _zeros(width: int) -> WeightExpr:
    return Apply(Expand((width,)), (Literal(0.0),))
