"""The epilogue of a packed linear -> a C++ functor that finishes results while they are in registers."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.cpu.expression import Number, expression, literal
from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.cpu.rows_arguments import Parameter, parameter_name
from llmc.ir.graph import Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.ops.pointwise import Cast
from llmc.ir.types import DType


@dataclass(frozen=True)
class Epilogue:
    """Members in order: the extras, then `out`; `value` computes 16 columns, `store` writes them."""

    members: list[Parameter]
    results: list[str]
    value: str
    width: int
    bf16: bool
    row_bytes: int


def write_epilogue(op: PackedLinear) -> Epilogue:
    """IRError when the body has a node without a CPU expression."""
    body = op.epilogue
    (out,) = body.outputs
    text: dict[Value, str] = {}
    results = ["a", "b"] if op.gated else ["y"]
    text.update(zip(body.inputs, results, strict=False))
    members = []
    for i, value in enumerate(body.inputs[len(results) :]):
        name = parameter_name(value, i)
        members.append(Parameter(name, "const float*"))
        if not value.tensor.shape:
            text[value] = f"splat(*{name})"
        elif value.tensor.is_rowed:
            text[value] = f"load({name} + (int64_t)row * {value.tensor.static_row_width()} + col, n)"
        else:
            text[value] = f"load({name} + col, n)"
    bf16 = out.tensor.dtype is DType.BF16
    for node in body.nodes:
        if isinstance(node.op, Scalar):
            text[node.output] = Number(literal(node.op.value))
        elif isinstance(node.op, Cast) and node.op.dtype is DType.BF16:
            text[node.output] = text[node.inputs[0]]
        else:
            text[node.output] = expression(node, [text[v] for v in node.inputs])
    members.append(Parameter("out", "uint16_t*" if bf16 else "float*"))
    return Epilogue(members, results, text[out], out.tensor.static_row_width(), bf16, row_bytes(out.tensor))
