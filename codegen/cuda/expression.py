"""Pointwise nodes -> scalar C++ expressions of device code, over the functions of `templates/cuda/math.cuh`.

A value is one `float` (bf16 and f16 values are floats that have been rounded to the format), one `int` (i32, i64) or
one `bool`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from llmc.codegen.numbers import finite_literal, float32
from llmc.ir.graph import IRError, Node, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.types import DType

POINTWISE = (Unary, Binary, Where, Cast)
INTS = (DType.I32, DType.I64)
FLOATS = (DType.F32, DType.F16, DType.BF16)
_HALVES = {DType.BF16: "bf16", DType.F16: "f16"}
_OPERATORS = {BinaryFn.ADD: "+", BinaryFn.SUB: "-", BinaryFn.MUL: "*", BinaryFn.DIV: "/"}
_COMPARISONS = {
    BinaryFn.LT: "<",
    BinaryFn.LE: "<=",
    BinaryFn.GT: ">",
    BinaryFn.GE: ">=",
    BinaryFn.EQ: "==",
    BinaryFn.NE: "!=",
}
_EXACT = (UnaryFn.NEG, UnaryFn.ABS, UnaryFn.RELU)  # of a half format they give values of the format
_POWERS = {"2.0f": "square_f32", "3.0f": "cube_f32", "-1.0f": "reciprocal_f32"}  # by the exponent's literal


def cpp_type(dtype: DType) -> str:
    """The C++ type that holds one value. IRError for int8 and the like."""
    if dtype in FLOATS:
        return "float"
    if dtype in INTS:
        return "int"
    if dtype is DType.BOOL:
        return "bool"
    raise IRError(f"no CUDA expression holds a value of {dtype.value}")


def literal(value: float, dtype: DType = DType.F32) -> str:
    """A constant of a dtype; float32 literals are read back to the same bits."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype in INTS:
        return str(int(value))
    x = float32(value)
    if math.isnan(x):
        return "nan_f32()"
    if math.isinf(x):
        return "inf_f32()" if x > 0 else "(-inf_f32())"
    return finite_literal(x)


def expression(node: Node, args: list[str]) -> str:
    """The C++ expression of one pointwise node on the texts of its inputs. IRError names a node that has none."""
    kinds = [v.tensor.dtype for v in node.inputs]
    match node.op:
        case Cast(dtype):
            return _cast(node, args[0], kinds[0], dtype)
        case Where():
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case Unary(UnaryFn.NOT):
            return f"(!{_truth(args[0], kinds[0])})"
        case Unary(fn) if kinds[0] is DType.F32 or (kinds[0] in FLOATS and fn in _EXACT):
            return f"{fn.value}_f32({args[0]})"
        case Unary(UnaryFn.NEG) if kinds[0] in INTS:
            return f"(- {args[0]})"
        case Binary(BinaryFn.AND):
            return f"({_truth(args[0], kinds[0])} && {_truth(args[1], kinds[1])})"
        case Binary(BinaryFn.OR):
            return f"({_truth(args[0], kinds[0])} || {_truth(args[1], kinds[1])})"
        case Binary(fn) if fn in _COMPARISONS:
            return f"({args[0]} {_COMPARISONS[fn]} {args[1]})"
        case Binary(BinaryFn.MAXIMUM | BinaryFn.MINIMUM as fn) if kinds[0] in FLOATS:
            return f"{fn.value[:3]}_f32({args[0]}, {args[1]})"
        case Binary(BinaryFn.MAXIMUM | BinaryFn.MINIMUM as fn) if kinds[0] in INTS:
            return f"{fn.value[:3]}({args[0]}, {args[1]})"
        case Binary(BinaryFn.POW) if kinds[0] is DType.F32:
            power = _POWERS.get(args[1])
            return f"{power}({args[0]})" if power else f"pow_f32({args[0]}, {args[1]})"
        case Binary(fn) if fn in _OPERATORS and _computes(fn, kinds[0]):
            return f"({args[0]} {_OPERATORS[fn]} {args[1]})"
    given = ", ".join(str(v.type) for v in node.inputs)
    raise IRError(f"{node.op} of {given} at {node.loc or 'no module'}: no CUDA expression for it")


def statements(nodes: Iterable[Node], text: dict[Value, str], prefix: str = "v") -> list[str]:
    """One declaration per pointwise node, in order; `text` has the inputs' texts and gets the outputs' names."""
    lines: list[str] = []
    for node in nodes:
        if isinstance(node.op, Scalar):
            text[node.output] = literal(node.op.value, node.op.dtype)
            continue
        if not isinstance(node.op, POINTWISE):
            raise IRError(f"{node.op.mnemonic()} at {node.loc or 'no module'}: not a pointwise node")
        name = f"{prefix}{len(lines)}"
        value = expression(node, [text[v] for v in node.inputs])
        lines.append(f"const {cpp_type(node.output.tensor.dtype)} {name} = {value};")
        text[node.output] = name
    return lines


def _computes(fn: BinaryFn, dtype: DType) -> bool:
    """f32 everything; integers where C++ means the same; the half formats nothing: models convert them first."""
    return dtype is DType.F32 or (dtype in INTS and fn is not BinaryFn.DIV)


def _truth(arg: str, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return arg
    return f"({arg} != {'0' if dtype in INTS else '0.0f'})"


def _cast(node: Node, arg: str, source: DType, target: DType) -> str:
    if source is target or (target in INTS and source in INTS) or (target is DType.F32 and source in FLOATS):
        return arg
    match target:
        case DType.BOOL:
            return _truth(arg, source)
        case DType.F32:
            return f"({arg} ? 1.0f : 0.0f)" if source is DType.BOOL else f"float({arg})"
        case DType.BF16 | DType.F16:
            wide = arg if source in FLOATS else _cast(node, arg, source, DType.F32)
            return f"to_f32(to_{_HALVES[target]}({wide}))"
        case DType.I32 | DType.I64 if source is DType.BOOL:
            return f"int({arg})"
    raise IRError(f"cast of {node.inputs[0].type} to {target.value} at {node.loc or 'no module'}: no CUDA code for it")
