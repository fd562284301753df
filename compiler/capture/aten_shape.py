"""aten ops that move elements and compute nothing."""

from __future__ import annotations

from llmc.compiler.capture.importer import Call, Result, aten
from llmc.ir.dims import Dim
from llmc.ir.graph import Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn
from llmc.ir.ops.shape import Arange, Concat, Expand, Permute, Slice

# the largest int64: "to the end"
_END = 2**63 - 1


@aten("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "_conj", "resolve_conj")
def identity(call: Call) -> Value:
    return call.value("self")


@aten("dropout")
def dropout(call: Call) -> Value:
    if call.arg("train"):
        raise call.refuse("in training mode")
    return call.value("input")


@aten("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze")
def view(call: Call) -> Value:
    if call.op == "view" and call.arg("dtype") is not None:
        raise call.refuse("as another dtype is not supported")
    return call.view(call.value("self"), *call.out.shape)


@aten("transpose", "t", "permute", "movedim", "numpy_T")
def permute(call: Call) -> Value:
    x = call.value("self")
    rank = x.tensor.rank
    order = list(range(rank))
    match call.op:
        case "permute":
            order = [int(dim) % rank for dim in call.arg("dims")]
        case "transpose":
            a, b = call.axis("dim0", rank), call.axis("dim1", rank)
            order[a], order[b] = order[b], order[a]
        case "movedim":
            source, target = _axes(call, "source", rank), _axes(call, "destination", rank)
            order = [axis for axis in order if axis not in source]
            for to, axis in sorted(zip(target, source, strict=True)):
                order.insert(to, axis)
        case _:
            order.reverse()
    return call.add(Permute(tuple(order)), x)


@aten("expand", "expand_as", "broadcast_to")
def expand(call: Call) -> Value:
    return _expanded(call, call.value("self"), *call.out.shape)


@aten("slice", "narrow")
def cut(call: Call) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.tensor.rank)
    if call.out == x.type:
        return x
    size = x.tensor.shape[axis]
    if not isinstance(size, int):
        raise call.refuse(f"takes a part of axis {axis} of {x.type}: positions or sequences")
    if call.op == "narrow":
        start, step = int(call.number("start")), 1
        stop = start + int(call.number("length"))
    else:
        start = int(call.number("start")) if call.has("start") else 0
        stop = int(call.number("end")) if call.has("end") else _END
        step = int(call.number("step"))
    start, stop, _ = slice(start, stop).indices(size)
    return call.add(Slice(axis, start, max(start, stop), step), x)


@aten("select")
def select(call: Call) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.tensor.rank)
    size = x.tensor.shape[axis]
    if not isinstance(size, int):
        raise call.refuse(f"takes one of axis {axis} of {x.type}: a position or sequence")
    index = int(call.number("index")) % size
    return call.view(call.add(Slice(axis, index, index + 1), x), *call.out.shape)


@aten("split", "split_with_sizes", "chunk", "unbind")
def parts(call: Call) -> Result:
    x = call.value("self")
    axis = call.axis("dim", x.tensor.rank)
    values: list[Value] = []
    at = 0
    for traced in call.node.meta["val"]:
        out = call.importer.sizes.type(traced, call.where)
        size = 1 if call.op == "unbind" else out.shape[axis]
        if not isinstance(size, int) or not isinstance(x.tensor.shape[axis], int):
            raise call.refuse(f"cuts axis {axis} of {x.type}: positions or sequences")
        values.append(call.view(call.add(Slice(axis, at, at + size), x), *out.shape))
        at += size
    return tuple(values)


@aten("cat", "concat")
def concat(call: Call) -> Value:
    tensors = [call.cast(x, call.out.dtype) for x in call.values("tensors")]
    return tensors[0] if len(tensors) == 1 else call.add(Concat(call.axis("dim", call.out.rank)), *tensors)


@aten("stack")
def stack(call: Call) -> Value:
    axis = call.axis("dim", call.out.rank)
    tensors = [call.cast(x, call.out.dtype) for x in call.values("tensors")]
    shape = call.out.shape
    columns = [call.view(x, *shape[:axis], 1, *shape[axis + 1 :]) for x in tensors]
    return columns[0] if len(columns) == 1 else call.add(Concat(axis), *columns)


@aten("repeat")
def repeat(call: Call) -> Value:
    """Each axis becomes (repeats, size), of which the first is expanded and then joined to the second."""
    x = call.value("self")
    counts = [int(n) for n in call.arg("repeats")]
    shape: tuple[Dim, ...] = (1,) * (len(counts) - x.tensor.rank) + x.tensor.shape
    apart = tuple(dim for size in shape for dim in (1, size))
    wide = tuple(dim for count, size in zip(counts, shape, strict=True) for dim in (count, size))
    return call.view(_expanded(call, call.view(x, *apart), *wide), *call.out.shape)


@aten("repeat_interleave")
def repeat_interleave(call: Call) -> Value:
    x = call.value("self")
    count = call.number("repeats")
    if not call.has("dim"):
        x = call.view(x, *call.out.shape[:-1], _exact(call, call.out.shape[-1], int(count)))
    axis = call.axis("dim", x.tensor.rank) if call.has("dim") else 0
    shape = x.tensor.shape
    apart = call.view(x, *shape[: axis + 1], 1, *shape[axis + 1 :])
    return call.view(_expanded(call, apart, *shape[: axis + 1], int(count), *shape[axis + 1 :]), *call.out.shape)


@aten("arange")
def arange(call: Call) -> Value:
    (size,) = call.out.shape
    values = call.cast(call.add(Arange(size)), call.out.dtype)
    if call.has("step") and call.number("step") != 1:
        values = call.add(Binary(BinaryFn.MUL), values, call.operand("step", call.out.dtype))
    if call.has("start") and call.arg("start") != 0:
        values = call.add(Binary(BinaryFn.ADD), values, call.operand("start", call.out.dtype))
    return values


@aten("ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
def filled(call: Call) -> Value:
    fill = 1.0 if "ones" in call.op else 0.0 if "zeros" in call.op else float(call.number("fill_value"))
    return _expanded(call, call.add(Scalar(fill, call.out.dtype)), *call.out.shape)


@aten("scalar_tensor")
def scalar_tensor(call: Call) -> Value:
    return call.add(Scalar(float(call.number("s")), call.out.dtype))


def _expanded(call: Call, x: Value, *shape: Dim) -> Value:
    return x if x.tensor.shape == shape else call.add(Expand(shape), x)


def _axes(call: Call, name: str, rank: int) -> list[int]:
    given = call.arg(name)
    return [int(axis) % rank for axis in (given if isinstance(given, list | tuple) else [given])]


def _exact(call: Call, size: Dim, count: int) -> int:
    if not isinstance(size, int):
        raise call.refuse(f"flattens to {size} elements: positions or sequences")
    return size // count
