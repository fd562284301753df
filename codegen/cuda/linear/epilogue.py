"""The epilogue of a packed linear -> a C++ struct that finishes results and stores them (templates/cuda/linear.cuh)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmc.codegen.cuda.expression import statements
from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.ops.pointwise import Cast
from llmc.ir.types import DType, TensorType

VECTOR_BYTES = 16
_CPP = {DType.F32: "float", DType.BF16: "bf16", DType.F16: "f16"}


@dataclass(frozen=True)
class Member:
    """One pointer of the struct: an extra input of the node, or its result."""

    name: str
    cpp_type: str
    type: str  # of the value, for the contract


@dataclass(frozen=True)
class LinearEpilogue:
    """`source` defines `struct Epilogue`, whose members are `extras` in the order of the node's inputs, then `out`."""

    source: str
    extras: tuple[Member, ...]
    out: Member
    width: int
    gated: bool

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(m.name for m in (*self.extras, self.out))


def write_epilogue(op: PackedLinear) -> LinearEpilogue:
    """IRError when the body has a node without a CUDA expression, or a value that no kernel stores."""
    body = op.epilogue
    if len(body.outputs) != 1:
        raise IRError(f"a linear's epilogue has {len(body.outputs)} results, expected 1")
    (out,) = body.outputs
    results = body.inputs[: 1 + op.gated]
    text: dict[Value, str] = dict(zip(results, ("a[i]", "b[i]"), strict=False))
    extras, loads, arrays = [], [], []
    for i, value in enumerate(body.inputs[len(results) :]):
        member = Member(f"{_identifier(value.name)}_{i}", f"const {_cpp(value.tensor, value.name)}*", str(value.type))
        extras.append(member)
        if not value.tensor.shape:
            loads.append(f"float x{i}[1];")
            loads.append(f"load_columns(x{i}, {member.name});")
            text[value] = f"x{i}[0]"
        else:
            arrays.append(f"x{i}[V]")
            loads.append(f"load_columns(x{i}, {_columns(member.name, value.tensor)});")
            text[value] = f"x{i}[i]"
    nodes = _without_last_rounding(body, out, text)
    loop = statements(nodes, text)
    width = out.tensor.static_row_width()
    member = Member("out", f"{_cpp(out.tensor, 'out')}*", str(out.type))
    lines = [
        "struct Epilogue {",
        *(f"  {m.cpp_type} {m.name};  // {m.type}" for m in (*extras, member)),
        f"  static constexpr bool kGated = {'true' if op.gated else 'false'};",
        f"  static constexpr int kWidth = {width}, kVector = {VECTOR_BYTES // out.tensor.dtype.num_bytes};",
        "",
        f"  // Columns col .. col+V-1 of one row; {'a, b: sums of gate and up' if op.gated else 'a: the sums'}.",
        "  template <int V>",
        "  LLMC_DEVICE void finish(int row, int col, const float (&a)[V], const float (&b)[V]) const {",
        f"    float {', '.join([*arrays, 'result[V]'])};",
        *(f"    {line}" for line in loads),
        "    LLMC_UNROLL",
        "    for (int i = 0; i < V; i++) {",
        *(f"      {line}" for line in loop),
        f"      result[i] = {text[out]};",
        "    }",
        f"    store_columns({_columns('out', out.tensor)}, result);",
        "  }",
        "};",
    ]
    return LinearEpilogue("\n".join(lines), tuple(extras), member, width, op.gated)


def _without_last_rounding(body: Graph, out: Value, text: dict[Value, str]) -> list[Node]:
    """The nodes but a last cast to the result's own format, which storing does; `text` of `out` is then filled in."""
    last = body.producers().get(out)
    rounds = last is not None and isinstance(last.op, Cast) and last.inputs[0].tensor.dtype is DType.F32
    if last is None or not rounds or out in (v for n in body.nodes for v in n.inputs):
        return list(body.nodes)
    nodes = [n for n in body.nodes if n is not last]
    statements(nodes, text)
    text[out] = text[last.inputs[0]]
    return nodes


def _columns(name: str, type_: TensorType) -> str:
    if type_.is_rowed:
        return f"row_at({name}, row, {row_bytes(type_)}) + col"
    return f"{name} + col"


def _cpp(type_: TensorType, name: str) -> str:
    if type_.dtype not in _CPP or type_.layout is not None:
        raise IRError(f"a linear's epilogue reads or writes %{name} of {type_}: expected f32, bf16 or f16")
    return _CPP[type_.dtype]


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "extra"
