"""Linears and embeddings become kernel-level ops on packed weights and operands in the scheme's formats."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.formats import Part, Scheme, WeightLayout
from llmc.ir.graph import Builder, Graph, IRError, Node, Value, eliminate_dead_code
from llmc.ir.ops.constant import (
    Apply,
    Interleave,
    Pack,
    PackScales,
    Quantize,
    Scalar,
    Weight,
    WeightExpr,
)
from llmc.ir.ops.kernel import GATE_RUN, PackedLinear, QuantizeRows
from llmc.ir.ops.nn import Embedding
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast
from llmc.ir.ops.reduce import GatedLinear, Linear
from llmc.ir.types import DType
from llmc.passes.canonicalise import merge_equal
from llmc.passes.choose_formats import scheme_of
from llmc.passes.cone import OPERAND_PAD, cones
from llmc.passes.rewrite import RuleLog
from llmc.passes.stored_numbers import stored_numbers, stored_part

# CUDA kernels do not read beyond an operand's row.
_OPERAND_PAD = {WeightLayout.PANELS: OPERAND_PAD, WeightLayout.ROWS: 1}


@dataclass(frozen=True)
class LowerLinears:
    """linear and gated_linear => packed_linear in their schemes, with the pointwise nodes that follow as its epilogue.

    A table that an embedding and the head share is packed once and read by both. Other tables are packed in the numbers
    that they are stored in, with `as_stored`, or stay in rows of `stored`.
    """

    stored: DType
    layout: WeightLayout = WeightLayout.PANELS
    as_stored: bool = False

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return _Lowering(self, merge_equal(self._spelled_out(graph)), log).run()

    def _spelled_out(self, graph: Graph) -> Graph:
        """Biases as additions and operands as conversions of their own, so that epilogues can take both."""
        b = Builder()
        for node in graph.nodes:
            if not isinstance(node.op, Linear | GatedLinear):
                b.nodes.append(node)
                continue
            x, *rest = node.inputs
            if x.tensor.rank != 2:
                raise IRError(f"linear at {node.loc or 'no module'}: input {x.type}, expected [T, K]")
            operand = self._operand(b, x, node)
            if isinstance(node.op, Linear) and len(rest) == 2:
                plain = b.add(node.op, operand, rest[0], loc=node.loc)
                b.nodes.append(Node(Binary(BinaryFn.ADD), (plain, rest[1]), node.outputs, node.loc))
            else:
                b.nodes.append(Node(node.op, (operand, *rest), node.outputs, node.loc))
        return Graph(graph.name, graph.inputs, graph.outputs, tuple(b.nodes))

    def _operand(self, b: Builder, x: Value, node: Node) -> Value:
        numbers = scheme_of(node).operand
        if numbers.group is not None:
            return b.add(QuantizeRows(numbers.group), x, loc=node.loc)
        return x if numbers.element is DType.F32 else b.add(Cast(numbers.element), x, loc=node.loc)


class _Lowering:
    def __init__(self, options: LowerLinears, graph: Graph, log: RuleLog) -> None:
        self.options = options
        self.graph = graph
        self.log = log
        self.users = graph.users()
        self.exprs = {n.output: n.op.expr for n in graph.nodes if isinstance(n.op, Weight)}
        self.scalars = {n.output: n.op for n in graph.nodes if isinstance(n.op, Scalar)}
        linears = [n for n in graph.nodes if isinstance(n.op, Linear)]
        self.schemes = {self.exprs.get(n.inputs[1]): scheme_of(n) for n in linears}  # of packed weights
        self.b = Builder()

    def run(self) -> Graph:
        at_exit: dict[Value, Node] = {}
        taken: set[Node] = set()
        for node in self.graph.nodes:
            if isinstance(node.op, Linear | GatedLinear) and node not in taken:
                exit_value, fused = self.plan(node, taken)
                at_exit[exit_value] = fused
        for node in self.graph.nodes:
            planned = at_exit.get(node.outputs[0])
            if planned is not None:
                self.emit(planned)
            elif isinstance(node.op, Embedding):
                self.embedding(node)
            else:
                self.b.nodes.append(node)
        graph = Graph(self.graph.name, self.graph.inputs, self.graph.outputs, tuple(self.b.nodes))
        return eliminate_dead_code(graph)

    def plan(self, node: Node, taken: set[Node]) -> tuple[Value, Node]:
        """The fused node for a linear (its inputs still in the model's formats), placed where its cone ends."""
        scheme, pad = scheme_of(node), _OPERAND_PAD[self.options.layout]
        found = [c for c in cones(self.graph, self.users, node.outputs, pad) if not taken.intersection(c.nodes)]
        cone = found[-1]
        taken.update(cone.nodes)
        if isinstance(node.op, GatedLinear):
            gate = node.op.body
            results = gate.inputs[:2]
            chain, more = cone.body("epilogue", gate.outputs, self.scalars)
            body = Graph("epilogue", (*gate.inputs, *chain.inputs[1:]), chain.outputs, (*gate.nodes, *chain.nodes))
            op = PackedLinear(scheme, body, gated=True)
            inputs = (*node.inputs, *more)
        else:
            results = (Value(node.output.type, "y"),)
            body, more = cone.body("epilogue", results, self.scalars)
            op = PackedLinear(scheme, body)
            inputs = (*node.inputs, *more)
        for absorbed in cone.nodes:
            self.log.applied["fuse-epilogue-" + absorbed.op.mnemonic()] += 1
        return cone.exit, Node(op, inputs, (cone.exit,), node.loc)

    def emit(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, PackedLinear)
        self.b.loc = node.loc
        num_weights = 1 + op.gated
        x, weights, extras = node.inputs[0], node.inputs[1 : 1 + num_weights], node.inputs[1 + num_weights :]
        exprs = [self.exprs.get(w) for w in weights]
        if None in exprs:
            raise IRError(f"linear at {node.loc or 'no module'}: its weight {weights[0].type} is not a constant")
        packed = self.packed([e for e in exprs if e is not None], op.scheme)
        inputs = [x, *(self.b.add(Weight(e)) for e in packed), *extras]
        self.b.nodes.append(Node(op, tuple(inputs), node.outputs, node.loc))

    def packed(self, exprs: list[WeightExpr], scheme: Scheme) -> list[WeightExpr]:
        """The arrays of a weight, made of one matrix or of two by turns, as they lie on disk: packed codes, then scales
        and offsets where there are any. What the checkpoint holds in these numbers is taken as it is."""
        numbers, layout = scheme.weight, self.options.layout

        def part(part: Part) -> WeightExpr:
            if numbers.group is None:
                made: tuple[WeightExpr, ...] = tuple(Apply(Cast(numbers.element), (e,)) for e in exprs)
            else:
                made = tuple(stored_part(e, numbers, part) or Apply(Quantize(numbers, part), (e,)) for e in exprs)
            joined = made[0] if len(made) == 1 else Apply(Interleave(GATE_RUN), made)
            if part is Part.DATA:
                return Apply(Pack(scheme, layout), (joined,))
            # one scale to a row lies as it is
            packed = joined.type.rank == 2 and layout is WeightLayout.PANELS
            return Apply(PackScales(scheme), (joined,)) if packed else joined

        return [part(p) for p in numbers.parts]

    def embedding(self, node: Node) -> None:
        self.b.loc = node.loc
        table, ids = node.inputs
        expr = self.exprs.get(table)
        if expr is None:
            raise IRError(f"embedding at {node.loc or 'no module'}: its table {table.type} is not a constant")
        scheme = self.schemes.get(expr) or self.stored_scheme(expr)
        if scheme is not None:
            data, *scales = (self.b.add(Weight(e)) for e in self.packed([expr], scheme))
            self.log.applied["share-tied-head"] += expr in self.schemes
        else:
            data, scales = self.b.add(Weight(Apply(Cast(self.options.stored), (expr,)))), []
        self.b.nodes.append(Node(Embedding(), (data, ids, *scales), node.outputs, node.loc))

    def stored_scheme(self, table: WeightExpr) -> Scheme | None:
        """That of a table of an embedding alone; CUDA kernels read such tables in rows of floats."""
        if not self.options.as_stored or self.options.layout is not WeightLayout.PANELS:
            return None
        numbers = stored_numbers(table)
        return None if numbers is None else Scheme.of(numbers)
