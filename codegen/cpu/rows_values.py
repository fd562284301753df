"""The values of a rows body as C++: views without code, pointwise values inside their user's loop, others in a row on
the stack or in an output's."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from llmc.codegen.cpu.expression import Number, expression, literal
from llmc.codegen.cpu.loops import Ref, dense, pointwise
from llmc.codegen.cpu.rows_arguments import INTS, Int, input_arguments, output_arguments
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, Where
from llmc.ir.ops.shape import Expand, GatherRows, View
from llmc.ir.types import DType, TensorType

_POINTWISE = (Unary, Binary, Where, Cast)
_INT_OPERATORS = {BinaryFn.ADD: "+", BinaryFn.SUB: "-", BinaryFn.MUL: "*"}


@dataclass
class RowValues:
    """What each value of a body is, and the lines that compute those which have been asked for."""

    body: Graph
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producers = self.body.producers()
        self.users = self.body.users()
        inputs, outputs = input_arguments(self.body), output_arguments(self.body)
        self.parameters = [*inputs.parameters, *outputs.parameters]
        self.refs: dict[Value, Ref | Int] = dict(inputs.refs)
        self.destination = outputs.destination
        self.names = 0

    def fresh(self, value: Value) -> Ref:
        """A place for all elements of a value's row."""
        shape = value.tensor.row_shape()
        if value in self.destination:
            return dense(self.destination[value], shape)
        name = f"v{self.names}"
        self.names += 1
        self.lines.append(f"alignas(64) float {name}[{max(prod(shape), 1)}];")
        return dense(name, shape)

    def ref(self, value: Value) -> Ref:
        found = self.refs.get(value)
        if found is None:
            node = self.producers[value]
            found = self.fresh(value)
            if isinstance(node.op, Scalar):
                number = literal(node.op.value)
                self.lines += pointwise(found, [], lambda _: f"splat({number})")
            else:
                self._pointwise_into(node, found)
            self.refs[value] = found
        if isinstance(found, Int):
            raise IRError(f"rows kernel: %{value.name} is an integer where floats are needed")
        return found

    def contiguous(self, value: Value) -> Ref:
        ref = self.ref(value)
        return ref if ref.contiguous else self.copied(ref)

    def copied(self, ref: Ref) -> Ref:
        name = f"v{self.names}"
        self.names += 1
        self.lines.append(f"alignas(64) float {name}[{ref.size}];")
        out = dense(name, ref.shape)
        self.lines += pointwise(out, [ref], lambda loads: loads[0])
        return out

    def integer(self, value: Value) -> str:
        found = self.refs.get(value)
        node = self.producers.get(value)
        if node is not None and isinstance(node.op, Scalar):
            return str(int(node.op.value))
        if not isinstance(found, Int):
            raise IRError(f"rows kernel: %{value.name} of {value.type} is not an integer of the row")
        return found.text

    def inlined(self, value: Value) -> bool:
        """Whether a pointwise value is computed inside its only user's loop; masks in that of every user."""
        users = self.users.get(value, [])
        if value in self.body.outputs or value in self.destination or not all(_is_loop(u) for u in users):
            return False
        if value.tensor.dtype is DType.BOOL:
            return True
        return len(users) == 1 and users[0].output.tensor.shape == value.tensor.shape

    # --- integers, and expressions

    def is_integer(self, node: Node) -> bool:
        """Does the node compute integers of the row?"""
        types = [v.type for v in node.outputs]
        return all(isinstance(t, TensorType) and t.dtype in INTS for t in types) and not isinstance(node.op, Scalar)

    def integer_node(self, node: Node) -> Int:
        match node.op:
            case Cast() | View() | Expand() | GatherRows():
                return Int(self.integer(node.inputs[0]))
            case Binary(fn) if fn in _INT_OPERATORS:
                a, b = (self.integer(v) for v in node.inputs)
                return Int(f"({a} {_INT_OPERATORS[fn]} {b})")
        raise IRError(f"rows kernel: {node.op} on integers at {node.loc or 'no module'} has no CPU code")

    def _pointwise_into(self, node: Node, out: Ref) -> None:
        leaves: list[Ref] = []
        text = self._expression(node, out.shape, leaves)
        if node.output.tensor.dtype is DType.BOOL:
            text = f"from_mask({text})"
        self.lines += pointwise(out, leaves, lambda loads: text.format(*loads))

    def _expression(self, node: Node, shape: tuple[int, ...], leaves: list[Ref]) -> str:
        args: list[str] = []
        for value in node.inputs:
            source = self.producers.get(value)
            if source is not None and isinstance(source.op, Scalar):
                args.append(Number(literal(source.op.value)))
            elif isinstance(self.refs.get(value), Int):
                args.append(f"splat((float)({self.integer(value)}))")
            elif (
                source is not None
                and isinstance(source.op, _POINTWISE)
                and value not in self.refs
                and self.joins(value)
            ):
                args.append(self._expression(source, shape, leaves))
            else:
                load = f"{{{len(leaves)}}}"
                args.append(f"to_mask({load})" if value.tensor.dtype is DType.BOOL else load)
                leaves.append(self.ref(value).broadcast(shape))
        return expression(node, args)

    def joins(self, value: Value) -> bool:
        source = self.producers[value]
        is_float_of_int = isinstance(source.op, Cast) and isinstance(self.refs.get(source.inputs[0]), Int)
        return is_float_of_int or self.inlined(value)


def _is_loop(node: Node) -> bool:
    """Is the node computed by a loop of expressions (not by a call on whole rows)?"""
    return isinstance(node.op, _POINTWISE) and not (isinstance(node.op, Cast) and node.op.dtype is DType.BF16)
