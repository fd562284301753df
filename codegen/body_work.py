"""Operations of the bodies of row kernels and epilogues, and how much of each input they read (codegen/work.py has the
conventions)."""

from __future__ import annotations

from collections.abc import Mapping

from llmc.ir.dims import evaluate, product
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.attention import KvWrite
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.kernel import QuantizeRows
from llmc.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeTable
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.reduce import MatMul, Reduce, Softmax
from llmc.ir.ops.shape import Concat, Expand, GatherRows, Permute, Slice, View
from llmc.ir.types import TensorType

Sizes = Mapping[str, int]


def elements(type_: TensorType, sizes: Sizes) -> int:
    return evaluate(product(type_.shape), sizes)


def body_flops(body: Graph, sizes: Sizes) -> int:
    """Operations of a body's nodes; IRError for an op that has no place in one."""
    return sum(_flops(node, sizes) for node in body.nodes)


def _flops(node: Node, sizes: Sizes) -> int:
    def size(value: Value) -> int:
        return elements(value.tensor, sizes)

    match node.op:
        case Cast() | View() | Permute() | Expand() | Slice() | Concat() | GatherRows() | KvWrite() | Scalar():
            return 0
        case Unary() | Binary() | Where():
            return size(node.output)
        case Reduce():
            return size(node.inputs[0])
        case Softmax():  # maximum, subtract, exponential, sum, divide
            return 5 * size(node.output)
        case MatMul():
            return 2 * size(node.output) * evaluate(node.inputs[0].tensor.shape[-1], sizes)
        case RmsNorm():  # square, sum, scale; weight
            return (3 + len(node.inputs[1:])) * size(node.output)
        case LayerNorm():  # sum, subtract, square, sum, scale; weight; bias
            return (5 + len(node.inputs[1:])) * size(node.output)
        case RopeTable():  # angle, cosine, sine: each output is half an angle and one function
            return 3 * size(node.outputs[0])
        case Rope():  # two products and a sum for each element that turns
            x, cos = node.inputs[0].tensor, node.inputs[1].tensor
            return 3 * 2 * elements(cos, sizes) * evaluate(x.shape[1], sizes)
        case Embedding():  # with scales: one product
            return size(node.output) if len(node.inputs) == 3 else 0
        case QuantizeRows():  # absolute, maximum, scale, round
            return 4 * size(node.output)
    raise IRError(f"{node.op.mnemonic()} at {node.loc or 'no module'}: no operations are known of it inside a kernel")


def elements_read(value: Value, users: Mapping[Value, list[Node]], sizes: Sizes) -> int:
    """Elements of a body's input that the body needs: all, unless every use takes a part."""
    whole = elements(value.tensor, sizes)
    found = 0
    for user in users.get(value, []):
        match user.op:
            case Slice() | GatherRows():
                found += elements(user.output.tensor, sizes)
            case Embedding() if user.inputs[0] is value:
                found += elements(user.output.tensor, sizes)
            case Embedding() if value in user.inputs[2:]:
                found += elements(user.inputs[1].tensor, sizes)  # a scale for each id
            case View():
                found += elements_read(user.output, users, sizes)
            case _:
                return whole
    return min(found, whole)
