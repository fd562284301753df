"""aten ops that combine elements: linears, embeddings, norms, reductions; and llmc's own two."""

from __future__ import annotations

from llmc.compiler.capture.importer import Call, aten, handles
from llmc.ir.graph import Value
from llmc.ir.ops.attention import Attention, Mask, MaskDescriptor
from llmc.ir.ops.nn import Embedding, LayerNorm, RmsNorm
from llmc.ir.ops.pointwise import Binary, BinaryFn
from llmc.ir.ops.reduce import Linear, MatMul, Reduce, ReduceFn, Softmax
from llmc.ir.types import DType, TensorType

_REDUCE = {"mean": ReduceFn.MEAN, "sum": ReduceFn.SUM, "amax": ReduceFn.MAX, "amin": ReduceFn.MIN}


@handles("llmc.mask")
def mask(call: Call) -> Value:
    described = Mask(call.arg("window"), call.arg("chunk"))
    batch, _, q_len, kv_len = call.out.shape
    ids = call.importer.ids
    if q_len != kv_len or ids.tensor.shape != (batch, q_len):
        raise call.refuse(f"of {call.out} is not one of whole sequences")
    value = call.add(MaskDescriptor(described), ids)
    call.importer.masks[value] = described
    return value


@handles("llmc.attention")
def attention(call: Call) -> Value:
    described = call.importer.masks.get(call.value("mask"))
    if described is None:
        raise call.refuse("has a mask that the model computed itself, so what it may see is unknown")
    sinks = [call.value("sinks")] if call.has("sinks") else []
    softcap = float(call.number("softcap")) if call.has("softcap") else None
    op = Attention(float(call.number("scale")), described, softcap, bool(sinks))
    return call.add(op, call.value("q"), call.value("k"), call.value("v"), *sinks)


@aten("scaled_dot_product_attention")
def stray_attention(call: Call) -> Value:
    raise call.refuse("bypasses transformers' attention interface, so it cannot be captured")


@aten("linear")
def linear(call: Call) -> Value:
    bias = [call.value("bias")] if call.has("bias") else []
    return call.add(Linear(), call.value("input"), call.value("weight"), *bias)


@aten("addmm")
def addmm(call: Call) -> Value:
    if call.number("alpha") != 1 or call.number("beta") != 1:
        raise call.refuse("with alpha or beta other than 1 is not supported")
    product = call.add(MatMul(), call.value("mat1"), call.value("mat2"))
    return call.add(Binary(BinaryFn.ADD), product, call.value("self"))


@aten("mm", "bmm", "matmul")
def matmul(call: Call) -> Value:
    x = call.value("self")
    y = call.value("other" if call.op == "matmul" else "mat2")
    if x.tensor.rank < 2 or y.tensor.rank < 2:
        raise call.refuse(f"of {x.type} and {y.type} is not supported, only of matrices")
    return call.add(MatMul(), x, y)


@aten("embedding")
def embedding(call: Call) -> Value:
    return call.add(Embedding(), call.value("weight"), call.value("indices"))


@aten("index")
def index(call: Call) -> Value:
    """A table read by one tensor of indices, such as sinusoids by positions."""
    table, indices = call.value("self"), call.values("indices") if None not in call.arg("indices") else []
    if table.tensor.rank != 2 or len(indices) != 1 or table.tensor.dtype is not DType.F32:
        raise call.refuse(
            f"of {table.type} by {len(call.arg('indices'))} tensors is not supported, only rows of a table"
        )
    return call.add(Embedding(), table, indices[0])


@aten("layer_norm")
def layer_norm(call: Call) -> Value:
    _one_axis(call)
    affine = [call.value(name) for name in ("weight", "bias") if call.has(name)]
    op = LayerNorm(float(call.number("eps")), call.has("weight"), call.has("bias"))
    return call.add(op, call.value("input"), *affine)


@aten("rms_norm")
def rms_norm(call: Call) -> Value:
    _one_axis(call)
    if not call.has("eps"):
        raise call.refuse("without eps is not supported")
    weight = [call.value("weight")] if call.has("weight") else []
    return call.add(RmsNorm(float(call.number("eps"))), call.value("input"), *weight)


@aten(*_REDUCE)
def reduce(call: Call) -> Value:
    x = call.cast(call.value("self"), call.out.dtype)
    rank = x.tensor.rank
    axes = call.arg("dim")
    named = axes if isinstance(axes, list | tuple) and axes else range(rank)
    for axis in sorted(int(a) % rank for a in named):
        x = call.add(Reduce(_REDUCE[call.op], axis), x)
    return call.view(x, *call.out.shape)


@aten("softmax", "_softmax")
def softmax(call: Call) -> Value:
    x = call.cast(call.value("self"), call.out.dtype)
    if call.axis("dim", x.tensor.rank) != x.tensor.rank - 1:
        raise call.refuse("over an axis other than the last is not supported")
    return call.add(Softmax(), x)


def _one_axis(call: Call) -> None:
    x: TensorType = call.value("input").tensor
    if tuple(call.arg("normalized_shape")) != x.shape[-1:]:
        raise call.refuse(f"over {call.arg('normalized_shape')} of {x} is not supported, only over the last axis")
