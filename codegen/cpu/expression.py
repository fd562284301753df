"""Pointwise nodes -> C++ expressions on the vectors of `templates/cpu/simd.h`."""

from __future__ import annotations

import math

import numpy as np

from llmc.compiler.ir.graph import IRError, Node
from llmc.compiler.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.compiler.ir.types import DType

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
    UnaryFn.NOT: "mask_not",
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
    """A float32 literal that C++ reads back to the same bits."""
    x = np.float32(value)
    if math.isnan(x):
        return '__builtin_nanf("")'
    if math.isinf(x):
        return "__builtin_inff()" if x > 0 else "-__builtin_inff()"
    return f"{x!s}f" if any(c in str(x) for c in ".e") else f"{x!s}.0f"


def expression(node: Node, args: list[str]) -> str:
    """The C++ expression of one pointwise node of float32 (or bool) vectors."""
    match node.op:
        case Unary(UnaryFn.RECIPROCAL):
            return f"(1.0f / {args[0]})"
        case Unary(fn):
            return f"{_CALLS[fn]}({args[0]})"
        case Binary(fn) if fn in _OPERATORS:
            return f"({args[0]} {_OPERATORS[fn]} {args[1]})"
        case Binary(fn):
            return f"{_BINARY_CALLS[fn]}({args[0]}, {args[1]})"
        case Where():
            return f"select({args[0]}, {args[1]}, {args[2]})"
        case Cast(DType.F32):
            return args[0]
    raise IRError(f"{node.op} at {node.loc}: no CPU expression for it")
