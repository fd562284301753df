"""Norms, softmax and rotary positions of a rows body as the pointwise nodes, reductions and views they are made of."""

from __future__ import annotations

from llmc.ir.dims import Dim
from llmc.ir.graph import Builder, Graph, IRError, Node, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.nn import LayerNorm, RmsNorm, Rope, RopeStyle, RopeTable
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn
from llmc.ir.ops.reduce import Reduce, ReduceFn, Softmax
from llmc.ir.ops.shape import Concat, Slice, View
from llmc.ir.types import DType


def expand(body: Graph) -> Graph:
    """The same body without composite nodes. Values that are left keep their identity."""
    b = _Expander()
    for node in body.nodes:
        b.loc, start = node.loc, len(b.nodes)
        match node.op:
            case RmsNorm(eps):
                outputs = [b.rms_norm(eps, *node.inputs)]
            case LayerNorm():
                outputs = [b.layer_norm(node.op, node.inputs)]
            case Softmax():
                outputs = [b.softmax(node.inputs[0])]
            case RopeTable():
                outputs = b.rope_table(*node.inputs)
            case Rope(style):
                outputs = [b.rope(style, *node.inputs)]
            case _:
                b.nodes.append(node)
                continue
        renamed = dict(zip(outputs, node.outputs, strict=True))
        b.nodes[start:] = [
            Node(n.op, n.inputs, tuple(renamed.get(v, v) for v in n.outputs), n.loc) for n in b.nodes[start:]
        ]
    return Graph(body.name, body.inputs, body.outputs, tuple(b.nodes))


class _Expander(Builder):
    def binary(self, fn: BinaryFn, a: Value, b: Value | float) -> Value:
        return self.add(Binary(fn), a, b if isinstance(b, Value) else self.add(Scalar(b)))

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary(BinaryFn.MUL, a, b)

    def along_last(self, fn: ReduceFn, x: Value) -> Value:
        if x.tensor.dtype is not DType.F32:
            raise IRError(f"rows kernel: {x.type} at {self.loc or 'no module'}: norms and softmax work on f32")
        return self.add(Reduce(fn, x.tensor.rank - 1), x)

    def scale(self, x: Value, eps: float) -> Value:
        """1 / sqrt(mean(x^2) + eps) along the last axis."""
        mean = self.along_last(ReduceFn.MEAN, self.mul(x, x))
        return self.add(Unary(UnaryFn.RSQRT), self.binary(BinaryFn.ADD, mean, eps))

    def rms_norm(self, eps: float, x: Value, *weight: Value) -> Value:
        y = self.mul(x, self.scale(x, eps))
        return self.mul(y, weight[0]) if weight else y

    def layer_norm(self, op: LayerNorm, inputs: tuple[Value, ...]) -> Value:
        x = inputs[0]
        centred = self.binary(BinaryFn.SUB, x, self.along_last(ReduceFn.MEAN, x))
        y = self.mul(centred, self.scale(centred, op.eps))
        if op.has_weight:
            y = self.mul(y, inputs[1])
        return self.binary(BinaryFn.ADD, y, inputs[-1]) if op.has_bias else y

    def softmax(self, x: Value) -> Value:
        shifted = self.binary(BinaryFn.SUB, x, self.along_last(ReduceFn.MAX, x))
        e = self.add(Unary(UnaryFn.EXP), shifted)
        return self.binary(BinaryFn.DIV, e, self.along_last(ReduceFn.SUM, e))

    def rope_table(self, positions: Value, inv_freq: Value) -> list[Value]:
        places = self.add(Cast(DType.F32), positions)
        column = self.add(View((*positions.tensor.shape, 1)), places)
        angles = self.mul(column, inv_freq)
        return [self.add(Unary(fn), angles) for fn in (UnaryFn.COS, UnaryFn.SIN)]

    def rope(self, style: RopeStyle, x: Value, cos: Value, sin: Value) -> Value:
        tokens, heads, width = x.tensor.shape
        half = _int(cos.tensor.shape[1])
        c, s = (self.add(View((tokens, 1, half)), table) for table in (cos, sin))
        if style is RopeStyle.HALF:
            a, b = self.cut(x, 0, half), self.cut(x, half, 2 * half)
        else:
            a, b = self.cut(x, 0, 2 * half, 2), self.cut(x, 1, 2 * half, 2)
        turned = [
            self.binary(BinaryFn.SUB, self.mul(a, c), self.mul(b, s)),
            self.binary(BinaryFn.ADD, self.mul(b, c), self.mul(a, s)),
        ]
        if style is RopeStyle.INTERLEAVED:
            columns = [self.add(View((tokens, heads, half, 1)), t) for t in turned]
            turned = [self.add(View((tokens, heads, 2 * half)), self.add(Concat(3), *columns))]
        rest = [self.cut(x, 2 * half, _int(width))] if 2 * half < _int(width) else []
        return self.add(Concat(2), *turned, *rest)

    def cut(self, x: Value, start: int, stop: int, step: int = 1) -> Value:
        return self.add(Slice(x.tensor.rank - 1, start, stop, step), x)


def _int(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise IRError(f"rows kernel: a row of symbolic width {dim}")
    return dim
