"""Flatten [batch, sequence] to one ragged axis of tokens.

A captured value has axes that are exactly B, S or B*S: its row axes. Here every value that depends on the input
becomes [T, rest...] with the row axes gone and the other axes in their order; a constant loses axes that only
repeat it over B or S. What mixes positions of a sequence, other than attention, has no such form and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.dims import Dim, Poly, divide, product, sym
from llmc.ir.graph import Builder, Graph, IRError, Node, Value, eliminate_dead_code
from llmc.ir.ops.attention import Attention, MaskDescriptor
from llmc.ir.ops.constant import Scalar, Weight
from llmc.ir.ops.nn import Embedding, LayerNorm
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.reduce import Linear, MatMul, Reduce, Softmax
from llmc.ir.ops.shape import Arange, Concat, Expand, Permute, Slice, View
from llmc.ir.types import DType, TensorType
from llmc.passes.rewrite import RuleLog


@dataclass(frozen=True)
class Flatten:
    """Captured graph (inputs %ids, %positions i64[B, S]) -> token graph (inputs %ids, %positions, %seqs i32[T])."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return _Flattener(graph).run()


@dataclass(frozen=True)
class _Form:
    """A captured value after flattening: `value` is [T, rest] if rowed, else [rest]."""

    captured: tuple[Dim, ...]
    value: Value
    rowed: bool


class _Flattener:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.batch, self.seq = graph.input("ids").tensor.shape
        if not isinstance(self.batch, Poly) or not isinstance(self.seq, Poly):
            raise IRError(f"graph {graph.name}: ids are {graph.input('ids').type}, expected symbolic [B, S]")
        self.row_dims: tuple[Dim, ...] = (self.batch, self.seq, self.batch * self.seq)
        self.tokens = sym("T")
        self.b = Builder()
        self.forms: dict[Value, _Form] = {}

    def run(self) -> Graph:
        inputs = [Value(TensorType(DType.I32, (self.tokens,)), name) for name in ("ids", "positions", "seqs")]
        self.positions, self.seqs = inputs[1:]
        for captured, flat in zip(self.graph.inputs, inputs, strict=False):
            wide = self.b.add(Cast(captured.tensor.dtype), flat)
            self.forms[captured] = _Form(captured.tensor.shape, wide, True)
        for node in self.graph.nodes:
            if isinstance(node.op, MaskDescriptor):
                continue
            self.b.loc = node.loc
            value = self.node(node)
            value.name = value.name or node.output.name
            rowed = value.tensor.rank > 0 and value.tensor.shape[0] == self.tokens
            self.forms[node.output] = _Form(node.output.tensor.shape, value, rowed)
        outputs = tuple(self.forms[v].value for v in self.graph.outputs)
        return eliminate_dead_code(Graph(self.graph.name, tuple(inputs), outputs, tuple(self.b.nodes)))

    def node(self, node: Node) -> Value:
        if any(v not in self.forms for v in node.inputs):
            raise self.refuse(node, "reads an attention mask")
        forms = [self.forms[v] for v in node.inputs]
        out = node.output.tensor.shape
        match node.op:
            case Weight() | Scalar():
                return self.b.add(node.op)
            case Arange(size) if size == self.seq:
                return self.b.add(Cast(DType.I64), self.positions)
            case Binary() | Where():
                return self.b.add(node.op, *(self.align(f, out, node) for f in forms))
            case Unary() | Cast():
                return self.b.add(node.op, forms[0].value)
            case Expand():
                return self.expand(forms[0], out, node)
            case View():
                self.check_view(forms[0], out, node)
                return self.view(forms[0].value, (*self.head(forms[0]), *self.rest(out)))
            case Permute(perm):
                return self.permute(forms[0], perm)
            case Slice(axis, start, stop, step):
                return self.b.add(Slice(self.axis(forms[0], axis, node), start, stop, step), forms[0].value)
            case Reduce(fn, axis):
                return self.b.add(Reduce(fn, self.axis(forms[0], axis, node)), forms[0].value)
            case Concat(axis):
                return self.concat(forms, axis, node)
            case Softmax() | LayerNorm() | Linear() | Embedding():
                x = forms[1] if isinstance(node.op, Embedding) else forms[0]
                if not isinstance(node.op, Embedding):
                    self.axis(x, len(x.captured) - 1, node)
                return self.b.add(node.op, *(f.value for f in forms))
            case MatMul():
                return self.matmul(forms, node)
            case Attention():
                return self.b.add(
                    node.op, *(f.value for f in forms[:3]), self.positions, self.seqs, *(f.value for f in forms[3:])
                )
        raise self.refuse(node, "has no meaning per token")

    def refuse(self, node: Node, why: str) -> IRError:
        types = ", ".join(str(v.type) for v in node.inputs)
        return IRError(
            f"{node.op.mnemonic()} of {types} at {node.loc or 'no module'} {why}: it mixes positions of a sequence, "
            "which only attention may; llmc cannot compile this model"
        )

    def rest(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(d for d in shape if d not in self.row_dims)

    def head(self, form: _Form) -> tuple[Dim, ...]:
        return (self.tokens,) if form.rowed else ()

    def axis(self, form: _Form, axis: int, node: Node) -> int:
        """Where a captured axis stands after flattening."""
        axis %= len(form.captured)
        if form.captured[axis] in self.row_dims:
            raise self.refuse(node, f"works along axis {axis}")
        return form.rowed + len(self.rest(form.captured[:axis]))

    def view(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        return value if value.tensor.shape == shape else self.b.add(View(shape), value)

    def align(self, form: _Form, out: tuple[Dim, ...], node: Node) -> Value:
        """An operand reshaped so that it broadcasts, after flattening, as it did to captured shape `out`."""
        if not form.captured:
            return form.value
        padded = (1,) * (len(out) - len(form.captured)) + form.captured
        self.check_rows(form, out, node)
        rest = tuple(d for d, o in zip(padded, out, strict=True) if o not in self.row_dims)
        if any(d in self.row_dims for d in rest):
            raise self.refuse(node, "aligns positions with another axis")
        if not form.rowed:
            while rest and rest[0] == 1:  # a constant broadcasts from the right: norm weights stay [width]
                rest = rest[1:]
        return self.view(form.value, (*self.head(form), *rest))

    def check_rows(self, form: _Form, out: tuple[Dim, ...], node: Node) -> None:
        """Row axes of a value meet the same axes of `out`; one of positions alone may repeat over the batch."""
        padded = (1,) * (len(out) - len(form.captured)) + form.captured
        rows = [(d, o) for d, o in zip(padded, out, strict=True) if o in self.row_dims]
        if form.rowed and any(d != o and (d, o) != (1, self.batch) for d, o in rows):
            raise self.refuse(node, f"combines {list(map(str, form.captured))} with other sequences or positions")

    def expand(self, form: _Form, out: tuple[Dim, ...], node: Node) -> Value:
        self.check_rows(form, out, node)
        padded = (1,) * (len(out) - len(form.captured)) + form.captured
        rest = tuple(d for d, o in zip(padded, out, strict=True) if o not in self.row_dims)
        value = self.view(form.value, (*self.head(form), *rest))
        shape = (*self.head(form), *self.rest(out))
        return value if value.tensor.shape == shape else self.b.add(Expand(shape), value)

    def permute(self, form: _Form, perm: tuple[int, ...]) -> Value:
        kept = [a for a, d in enumerate(form.captured) if d not in self.row_dims]
        order = [kept.index(a) for a in perm if a in kept]
        if order == sorted(order):
            return form.value
        head = (0,) if form.rowed else ()
        return self.b.add(Permute((*head, *(o + form.rowed for o in order))), form.value)

    def concat(self, forms: list[_Form], axis: int, node: Node) -> Value:
        rowed = any(f.rowed for f in forms)
        at = self.axis(forms[0], axis, node) + (rowed and not forms[0].rowed)
        parts = []
        for form in forms:
            value = form.value
            if rowed and not form.rowed:
                value = self.b.add(Expand((self.tokens, *value.tensor.shape)), value)
            parts.append(value)
        return self.b.add(Concat(at), *parts)

    def matmul(self, forms: list[_Form], node: Node) -> Value:
        a, b = forms
        self.axis(a, -1, node)
        if b.rowed:
            raise self.refuse(node, "multiplies by values of the sequence")
        if a.rowed and b.value.tensor.rank > 2:
            types = ", ".join(str(v.type) for v in node.inputs)
            raise IRError(
                f"mat_mul of {types} at {node.loc or 'no module'}: products with a stack of matrices are not supported"
            )
        return self.b.add(node.op, a.value, b.value)

    def check_view(self, form: _Form, out: tuple[Dim, ...], node: Node) -> None:
        """Every run of axes that a view regroups holds either rows alone or none."""
        for before, after in _groups(form.captured, out):
            rows = [d in self.row_dims for d in (*before, *after) if d != 1]
            if any(rows) and not all(rows):
                raise self.refuse(node, f"regroups rows with other axes as {list(map(str, out))}")


def _groups(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> list[tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
    """The finest runs of axes with equal element counts on both sides of a view."""
    groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while (left := product(before[start_i:i])) != (right := product(after[start_j:j])):
            if i < len(before) and (j == len(after) or divide(right, left) is not None):
                i += 1
            elif j < len(after):
                j += 1
            elif i < len(before):
                i += 1
            else:
                break
        groups.append((before[start_i:i], after[start_j:j]))
    return groups
