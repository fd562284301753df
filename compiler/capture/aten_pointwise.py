"""aten ops that work element by element."""

from __future__ import annotations

import torch

from llmc.compiler.capture.importer import Call, aten
from llmc.ir.graph import Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Unary, UnaryFn, Where
from llmc.ir.ops.shape import Expand
from llmc.ir.types import DType

_UNARY = {
    "abs": UnaryFn.ABS,
    "cos": UnaryFn.COS,
    "erf": UnaryFn.ERF,
    "exp": UnaryFn.EXP,
    "log": UnaryFn.LOG,
    "logical_not": UnaryFn.NOT,
    "neg": UnaryFn.NEG,
    "reciprocal": UnaryFn.RECIPROCAL,
    "relu": UnaryFn.RELU,
    "rsqrt": UnaryFn.RSQRT,
    "sigmoid": UnaryFn.SIGMOID,
    "silu": UnaryFn.SILU,
    "sin": UnaryFn.SIN,
    "sqrt": UnaryFn.SQRT,
    "tanh": UnaryFn.TANH,
}

_BINARY = {
    "eq": BinaryFn.EQ,
    "ge": BinaryFn.GE,
    "gt": BinaryFn.GT,
    "le": BinaryFn.LE,
    "logical_and": BinaryFn.AND,
    "logical_or": BinaryFn.OR,
    "lt": BinaryFn.LT,
    "maximum": BinaryFn.MAXIMUM,
    "minimum": BinaryFn.MINIMUM,
    "mul": BinaryFn.MUL,
    "ne": BinaryFn.NE,
    "pow": BinaryFn.POW,
}


@aten(*_UNARY)
def unary(call: Call) -> Value:
    x = call.cast(call.value("self"), call.out.dtype)
    return call.add(Unary(_UNARY[call.op]), x)


@aten(*_BINARY)
def binary(call: Call) -> Value:
    fn = _BINARY[call.op]
    names = ("self", "exponent" if fn is BinaryFn.POW else "other")
    dtype = _dtype_of_operands(call, *names)
    return call.add(Binary(fn), *(call.operand(name, dtype) for name in names))


@aten("add", "sub")
def add_or_sub(call: Call) -> Value:
    scaled = call.operand("other", call.out.dtype)
    if call.number("alpha") != 1:
        alpha = call.add(Scalar(float(call.number("alpha")), call.out.dtype))
        scaled = call.add(Binary(BinaryFn.MUL), scaled, alpha)
    fn = BinaryFn.ADD if call.op == "add" else BinaryFn.SUB
    return call.add(Binary(fn), call.operand("self", call.out.dtype), scaled)


@aten("rsub")
def rsub(call: Call) -> Value:
    if call.number("alpha") != 1:
        raise call.refuse(f"with alpha {call.number('alpha')} is not supported")
    return call.add(Binary(BinaryFn.SUB), call.operand("other", call.out.dtype), call.operand("self", call.out.dtype))


@aten("div")
def div(call: Call) -> Value:
    if call.has("rounding_mode"):
        raise call.refuse(f"with rounding_mode {call.arg('rounding_mode')} is not supported")
    return call.add(Binary(BinaryFn.DIV), call.operand("self", call.out.dtype), call.operand("other", call.out.dtype))


@aten("bitwise_and", "bitwise_or", "bitwise_not")
def logic(call: Call) -> Value:
    if call.out.dtype is not DType.BOOL:
        raise call.refuse(f"of {call.out.dtype.value} is not supported, only of bool")
    if call.op == "bitwise_not":
        return call.add(Unary(UnaryFn.NOT), call.value("self"))
    fn = BinaryFn.AND if call.op == "bitwise_and" else BinaryFn.OR
    return call.add(Binary(fn), call.operand("self", DType.BOOL), call.operand("other", DType.BOOL))


@aten("square")
def square(call: Call) -> Value:
    x = call.value("self")
    return call.add(Binary(BinaryFn.MUL), x, x)


@aten("expm1")
def expm1(call: Call) -> Value:
    # within one rounding of 1 in float32, which is what activations add it to
    one = call.add(Scalar(1.0, call.out.dtype))
    return call.add(Binary(BinaryFn.SUB), call.add(Unary(UnaryFn.EXP), call.value("self")), one)


@aten("gelu")
def gelu(call: Call) -> Value:
    fn = {"none": UnaryFn.GELU, "tanh": UnaryFn.GELU_TANH}[call.arg("approximate")]
    return call.add(Unary(fn), call.value("self"))


@aten("softplus")
def softplus(call: Call) -> Value:
    # above the threshold torch returns x itself, as float32 arithmetic does anyway from 20 on
    if call.number("beta") != 1 or call.number("threshold") < 20:
        raise call.refuse("with other than beta 1 and threshold 20 is not supported")
    return call.add(Unary(UnaryFn.SOFTPLUS), call.value("self"))


@aten("clamp", "clamp_min", "clamp_max", "hardtanh")
def clamp(call: Call) -> Value:
    x = call.value("self")
    for names, fn in ((("min", "min_val"), BinaryFn.MAXIMUM), (("max", "max_val"), BinaryFn.MINIMUM)):
        for name in names:
            if call.has(name):
                x = call.add(Binary(fn), x, call.operand(name, call.out.dtype))
    return x


@aten("where")
def where(call: Call) -> Value:
    if not call.has("self"):
        raise call.refuse("that returns indices is not supported")
    condition = call.value("condition")
    dtype = call.out.dtype
    return call.add(Where(), condition, call.operand("self", dtype), call.operand("other", dtype))


@aten("masked_fill")
def masked_fill(call: Call) -> Value:
    dtype = call.out.dtype
    return call.add(Where(), call.value("mask"), call.operand("value", dtype), call.value("self"))


@aten("min", "max")
def smaller_or_larger(call: Call) -> Value:
    if not call.has("other"):
        raise call.refuse("over axes is not supported, only of two tensors")
    fn = BinaryFn.MINIMUM if call.op == "min" else BinaryFn.MAXIMUM
    return call.add(Binary(fn), call.operand("self", call.out.dtype), call.operand("other", call.out.dtype))


@aten("copy")
def copy(call: Call) -> Value:
    source = call.cast(call.value("src"), call.out.dtype)
    return source if source.type == call.out else call.add(Expand(call.out.shape), source)


@aten("to", "_to_copy", "type_as")
def convert(call: Call) -> Value:
    return call.cast(call.value("self"), call.out.dtype)


def _dtype_of_operands(call: Call, *names: str) -> DType:
    """The dtype both operands are brought to: torch's own promotion of their types."""
    if call.out.dtype is not DType.BOOL:
        return call.out.dtype
    traced = []
    for name in names:
        given = call.arg(name)
        traced.append(given.meta["val"] if hasattr(given, "meta") else given)
    return call.dtype(torch.result_type(*traced))
