"""The body of a `rows` node -> one C++ function that works row by row.

Values that only rename elements (views, slices, permutations, expansions) become strided views without code; pointwise
nodes with one user join their user's loop; everything else gets a scratch row on the stack or goes straight to an
output row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmc.codegen.cpu.kv import kind
from llmc.codegen.cpu.loops import Ref, dense, pointwise
from llmc.codegen.cpu.rows_arguments import FLOATS, INTS, Parameter
from llmc.codegen.cpu.rows_functions import compute, operand
from llmc.codegen.cpu.rows_values import RowValues
from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.attention import KvWrite
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.kernel import QuantizeRows
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.shape import Expand, GatherRows, Permute, Slice, View
from llmc.ir.types import CacheType, DType


@dataclass
class RowsKernel:
    """Generated text of one kernel.

    `parameters`: one for every tensor among the node's inputs, then one for every tensor output, then the pool and the
    slot of each of `cache_writes`.
    """

    parameters: list[Parameter]
    lines: list[str]
    cache_writes: list[KvWrite]


def write_rows(body: Graph) -> RowsKernel:
    """Generate the kernel of a `rows` body. IRError names a node that has no CPU code."""
    return _Writer(RowValues(body)).write()


@dataclass
class _Writer:
    values: RowValues
    cache_writes: list[KvWrite] = field(default_factory=list)

    def write(self) -> RowsKernel:
        body = self.values.body
        for node in body.nodes:
            self.node(node)
        for value in body.outputs:
            self.finish(value)
        parameters = list(self.values.parameters)
        for i, write in enumerate(self.cache_writes):
            parameters.append(Parameter(f"pool_{i}", "const KvPool&"))
            parameters.append(Parameter(f"slot_{i}", f"const KvSlot<{kind(write.dtype)}>&"))
        return RowsKernel(parameters, self.values.lines, self.cache_writes)

    def node(self, node: Node) -> None:
        values, op = self.values, node.op
        if values.is_integer(node):
            values.refs[node.output] = values.integer_node(node)
            return
        match op:
            case Unary() | Binary() | Where() | Scalar():
                if not isinstance(op, Scalar) and not values.inlined(node.output):
                    self._note(node)
                    values.ref(node.output)
            case Cast(DType.BF16) | QuantizeRows():
                self._note(node)
                operand(values, node)
            case Cast():
                if not values.joins(node.output):
                    values.ref(node.output)
            case GatherRows():
                values.refs[node.output] = values.refs[node.inputs[0]]
            case View() | Expand() | Slice() | Permute():
                values.refs[node.output] = _moved(values, node)
            case KvWrite():
                self._note(node)
                self._cache_write(node, op)
            case _:
                self._note(node)
                compute(values, node)

    def _note(self, node: Node) -> None:
        types = ", ".join(str(v.type) for v in node.outputs)
        self.values.lines.append(f"// {node.op.mnemonic()} -> {types}")

    def _cache_write(self, node: Node, op: KvWrite) -> None:
        k, v = (self.values.contiguous(value) for value in node.inputs[1:3])
        position, seq = (self.values.integer(value) for value in node.inputs[3:5])
        i = len(self.cache_writes)
        self.cache_writes.append(op)
        self.values.lines.append(f"kv_write(pool_{i}, slot_{i}, {seq}, {position}, {k.pointer}, {v.pointer});")

    def finish(self, value: Value) -> None:
        """Copy an output that was not computed in its place."""
        if isinstance(value.type, CacheType):
            return
        pointer = self.values.destination[value]
        if value.tensor.dtype in INTS:
            self.values.lines.append(f"{pointer} = (int32_t)({self.values.integer(value)});")
            return
        if value.tensor.dtype not in FLOATS:
            return
        ref = self.values.ref(value)
        if ref.pointer != pointer:
            self.values.lines += pointwise(dense(pointer, ref.shape), [ref], lambda loads: loads[0])


def _moved(values: RowValues, node: Node) -> Ref:
    """The elements of the input under other indices."""
    shape = node.output.tensor.row_shape()
    rowed = node.inputs[0].tensor.shape[:1] == node.output.tensor.shape[:1]
    match node.op:
        case View():
            return dense(values.contiguous(node.inputs[0]).pointer, shape)
        case Expand():
            return values.ref(node.inputs[0]).broadcast(shape)
        case Slice(axis, start, stop, step):
            return values.ref(node.inputs[0]).sliced(axis - rowed, start, stop, step)
        case Permute(perm):
            return values.ref(node.inputs[0]).permuted([p - 1 for p in perm[1:]] if rowed else perm)
    raise AssertionError(node.op)
