"""Pointwise nodes -> C++ expressions on the vectors of `templates/cpu/simd.h`."""

from __future__ import annotations

import math

from llmc.codegen.numbers import finite_literal, float32
from llmc.ir.graph import IRError, Node
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.types import DType

_CALLS = {
    UnaryFn.NEG: "neg",
    UnaryFn.ABS: "abs",
    UnaryFn.EXP: "exp",
    UnaryFn.LOG: "log",
    UnaryFn.SQRT: "sqrt",
    UnaryFn.RSQRT: "rsqrt",
    UnaryFn.TANH: "tanh",
    UnaryFn.SIGMOID: "sigmoid",
    UnaryFn.SILU: "silu",
    UnaryFn.GELU: "gelu_erf",
    UnaryFn.GELU_TANH: "gelu_tanh",
    UnaryFn.RELU: "relu",
    UnaryFn.ERF: "erf",
    UnaryFn.SIN: "sin",
    UnaryFn.COS: "cos",
    UnaryFn.SOFTPLUS: "softplus",
}
_OPERATORS = {BinaryFn.ADD: "+", BinaryFn.SUB: "-", BinaryFn.MUL: "*", BinaryFn.DIV: "/"}
_BINARY_CALLS = {
    BinaryFn.MAXIMUM: "max",
    BinaryFn.MINIMUM: "min",
    BinaryFn.POW: "pow",
    BinaryFn.LT: "lt",
    BinaryFn.LE: "le",
    BinaryFn.GT: "gt",
    BinaryFn.GE: "ge",
    BinaryFn.EQ: "eq",
    BinaryFn.NE: "ne",
    BinaryFn.AND: "mask_and",
    BinaryFn.OR: "mask_or",
}


def literal(value: float) -> str:
    """A float32 literal that C++ reads back to the same bits (infinite where float32 ends)."""
    x = float32(value)
    if math.isnan(x):
        return '__builtin_nanf("")'
    if math.isinf(x):
        return "__builtin_inff()" if x > 0 else "-__builtin_inff()"
    return finite_literal(x)


class Number(str):
    """C++ text of a float, not of a vector."""


def expression(node: Node, args: list[str]) -> str:
    """The C++ expression of one pointwise node of float32 vectors or masks; some of `args` may be a Number."""
    kinds = [v.tensor.dtype for v in node.inputs]
    match node.op:
        case Unary(UnaryFn.RECIPROCAL):
            return f"(1.0f / {_vector(args[0])})"
        case Unary(UnaryFn.NOT):
            return f"mask_not({_mask(args[0], kinds[0])})"
        case Unary(fn):
            return f"{_CALLS[fn]}({_vector(args[0])})"
        case Binary(BinaryFn.AND | BinaryFn.OR as fn):
            return f"{_BINARY_CALLS[fn]}({_mask(args[0], kinds[0])}, {_mask(args[1], kinds[1])})"
        case Binary(BinaryFn.EQ | BinaryFn.NE as fn) if kinds[0] is DType.BOOL:
            return f"mask_{fn.value}({_mask(args[0], kinds[0])}, {_mask(args[1], kinds[1])})"
        case Binary(fn) if fn in _OPERATORS:
            first = args[0] if not isinstance(args[1], Number) else _vector(args[0])
            return f"({first} {_OPERATORS[fn]} {args[1]})"
        case Binary(BinaryFn.POW):
            return f"pow({_vector(args[0])}, {_vector(args[1])})"
        case Binary(fn):
            return f"{_BINARY_CALLS[fn]}({_vector(args[0])}, {args[1]})"
        case Where() if kinds[1] is DType.BOOL:
            return f"mask_select({', '.join(_mask(a, k) for a, k in zip(args, kinds, strict=True))})"
        case Where():
            return f"select({_mask(args[0], kinds[0])}, {args[1]}, {args[2]})"
        case Cast(DType.F32):
            return f"from_mask({_mask(args[0], kinds[0])})" if kinds[0] is DType.BOOL else args[0]
        case Cast(DType.BOOL):
            return _mask(args[0], kinds[0])
    raise IRError(f"{node.op} at {node.loc or 'no module'}: no CPU expression for it")


def _vector(arg: str) -> str:
    return f"splat({arg})" if isinstance(arg, Number) else arg


def _mask(arg: str, dtype: DType) -> str:
    if isinstance(arg, Number):
        return f"mask_of({arg} != 0.0f)"
    return arg if dtype is DType.BOOL else f"to_mask({arg})"
