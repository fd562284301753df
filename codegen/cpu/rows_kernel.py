"""The body of a `rows` node -> one C++ function that works row by row.

Values that only rename elements (views, slices, permutations, expansions) become strided views without code; pointwise
nodes with one user join their user's loop; everything else gets a scratch row on the stack or goes straight to an
output row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

from llmc.codegen.cpu.expression import Number, expression, literal
from llmc.codegen.cpu.formats import operand_format, panel_format, row_bytes
from llmc.codegen.cpu.loops import Ref, dense, over_outer, pointwise
from llmc.compiler.ir.dims import Poly
from llmc.compiler.ir.graph import Graph, IRError, Node, Value
from llmc.compiler.ir.ops.attention import KvWrite
from llmc.compiler.ir.ops.constant import Scalar
from llmc.compiler.ir.ops.kernel import QuantizeRows
from llmc.compiler.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeStyle, RopeTable
from llmc.compiler.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, Where
from llmc.compiler.ir.ops.reduce import Reduce, ReduceFn, Softmax
from llmc.compiler.ir.ops.shape import Concat, Expand, GatherRows, Permute, Slice, View
from llmc.compiler.ir.types import CacheType, DType, TensorType

_POINTWISE = (Unary, Binary, Where, Cast)
_INTS = (DType.I32, DType.I64)  # one to a row, stored as int32
_FLOATS = (DType.F32, DType.BOOL)  # a bool is stored as a float 0 or 1
_INT_OPERATORS = {BinaryFn.ADD: "+", BinaryFn.SUB: "-", BinaryFn.MUL: "*"}


@dataclass(frozen=True)
class Parameter:
    """One argument of a generated kernel."""

    name: str
    cpp_type: str


@dataclass
class RowsKernel:
    """Generated text of one kernel.

    `parameters`: one for every tensor among the node's inputs, then one for every tensor output, then the pool and the
    slot of each of `cache_writes`.
    """

    parameters: list[Parameter]
    lines: list[str]
    cache_writes: list[KvWrite]


@dataclass(frozen=True)
class Int:
    """An integer of the row, as a C++ expression."""

    text: str


@dataclass
class _Writer:
    body: Graph
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producers = self.body.producers()
        self.users = self.body.users()
        self.refs: dict[Value, Ref | Int] = {}
        self.names = 0
        self.cache_writes: list[KvWrite] = []

    def write(self) -> RowsKernel:
        inputs = (self.input(v, i) for i, v in enumerate(self.body.inputs))
        parameters = [p for p in inputs if p is not None]
        outputs = self.outputs()
        for node in self.body.nodes:
            self.node(node)
        for value in self.body.outputs:
            self.finish(value)
        parameters += outputs
        for i, write in enumerate(self.cache_writes):
            kind = "KvF32" if write.dtype is DType.F32 else "KvBf16"
            parameters.append(Parameter(f"pool_{i}", "const KvPool&"))
            parameters.append(Parameter(f"slot_{i}", f"const KvSlot<{kind}>&"))
        return RowsKernel(parameters, self.lines, self.cache_writes)

    # --- inputs and outputs

    def input(self, value: Value, index: int) -> Parameter | None:
        if isinstance(value.type, CacheType):
            return None
        name = parameter_name(value, index)
        type_ = value.tensor
        rowed = bool(type_.shape) and isinstance(type_.shape[0], Poly)
        if type_.dtype in _INTS:
            if not rowed or type_.static_row_width() != 1:
                raise IRError(f"rows kernel: %{value.name} is {type_}; integers are one to a row")
            self.refs[value] = Int(f"{name}[{self._row_of(value)}]")
            return Parameter(name, "const int32_t*")
        if type_.dtype not in _FLOATS or type_.layout is not None:
            if rowed or not all(isinstance(n.op, Embedding) for n in self.users.get(value, [])):
                raise IRError(f"rows kernel: no code reads %{value.name} of {type_}")
            self.refs[value] = Ref(name, (), ())
            return Parameter(name, "const void*")
        if not rowed:
            self.refs[value] = dense(name, type_.static_shape())
            return Parameter(name, "const float*")
        row = self._row_of(value)
        width = type_.static_row_width()
        self.refs[value] = dense(f"({name} + (int64_t){row} * {width})", _rest(type_))
        return Parameter(name, "const float*")

    def _row_of(self, value: Value) -> str:
        """The row of an input that row `row` of the kernel reads: its own, or the one a gather names."""
        gathers = [n for n in self.users.get(value, []) if isinstance(n.op, GatherRows) and n.inputs[0] is value]
        if not gathers:
            return "row"
        if len(self.users[value]) != len(gathers):
            raise IRError(f"rows kernel: %{value.name} is read both whole and gathered")
        rows = self.refs.get(gathers[0].inputs[1])
        if rows is None:  # the index input stands later among the inputs: its parameter name is known by position
            index = self.body.inputs.index(gathers[0].inputs[1])
            return f"{parameter_name(gathers[0].inputs[1], index)}[row]"
        assert isinstance(rows, Int)
        return rows.text

    def outputs(self) -> list[Parameter]:
        self.destination: dict[Value, str] = {}
        parameters = []
        for i, value in enumerate(self.body.outputs):
            if isinstance(value.type, CacheType):
                continue
            name = f"out_{i}"
            if value.tensor.dtype in _FLOATS:
                pointer = f"({name} + (int64_t)row * {value.tensor.static_row_width()})"
                parameters.append(Parameter(name, "float*"))
            elif value.tensor.dtype in _INTS:
                pointer = f"{name}[row]"
                parameters.append(Parameter(name, "int32_t*"))
            else:
                pointer = f"({name} + (int64_t)row * {row_bytes(value.tensor)})"
                parameters.append(Parameter(name, "uint8_t*"))
            self.destination.setdefault(self._base(value), pointer)
            self.destination.setdefault(value, pointer)
        return parameters

    def _base(self, value: Value) -> Value:
        """The value whose elements `value` is in the same order (views followed back)."""
        node = self.producers.get(value)
        if value.tensor.dtype not in _FLOATS:
            return value
        while node is not None and isinstance(node.op, View) and node.inputs[0] in self.producers:
            value = node.inputs[0]
            node = self.producers.get(value)
        return value

    def finish(self, value: Value) -> None:
        """Copy an output that was not computed in its place."""
        if isinstance(value.type, CacheType):
            return
        pointer = self.destination[value]
        if value.tensor.dtype in _INTS:
            self.lines.append(f"{pointer} = (int32_t)({self.integer(value)});")
            return
        if value.tensor.dtype not in _FLOATS:
            return
        ref = self.ref(value)
        if ref.pointer != pointer:
            self.lines += pointwise(dense(pointer, ref.shape), [ref], lambda loads: loads[0])

    # --- values

    def fresh(self, value: Value) -> Ref:
        """A place for all elements of a value's row."""
        shape = _rest(value.tensor)
        if value in self.destination:
            return dense(self.destination[value], shape)
        name = f"v{self.names}"
        self.names += 1
        self.lines.append(f"alignas(64) float {name}[{max(prod(shape), 1)}];")
        return dense(name, shape)

    def ref(self, value: Value) -> Ref:
        found = self.refs.get(value)
        if found is None:
            node = self.producers[value]
            found = self.fresh(value)
            if isinstance(node.op, Scalar):
                number = literal(node.op.value)
                self.lines += pointwise(found, [], lambda _: f"splat({number})")
            else:
                self._pointwise_into(node, found)
            self.refs[value] = found
        if isinstance(found, Int):
            raise IRError(f"rows kernel: %{value.name} is an integer where floats are needed")
        return found

    def contiguous(self, value: Value) -> Ref:
        ref = self.ref(value)
        return ref if ref.contiguous else self._copied(ref)

    def _copied(self, ref: Ref) -> Ref:
        name = f"v{self.names}"
        self.names += 1
        self.lines.append(f"alignas(64) float {name}[{ref.size}];")
        out = dense(name, ref.shape)
        self.lines += pointwise(out, [ref], lambda loads: loads[0])
        return out

    def integer(self, value: Value) -> str:
        found = self.refs.get(value)
        node = self.producers.get(value)
        if node is not None and isinstance(node.op, Scalar):
            return str(int(node.op.value))
        if not isinstance(found, Int):
            raise IRError(f"rows kernel: %{value.name} of {value.type} is not an integer of the row")
        return found.text

    def inlined(self, value: Value) -> bool:
        """Whether a pointwise value is computed inside its only user's loop; masks in that of every user."""
        users = self.users.get(value, [])
        if value in self.body.outputs or value in self.destination or not all(_is_loop(u) for u in users):
            return False
        if value.tensor.dtype is DType.BOOL:
            return True
        return len(users) == 1 and users[0].output.tensor.shape == value.tensor.shape

    # --- nodes

    def node(self, node: Node) -> None:
        op = node.op
        if self._is_integer(node):
            self.refs[node.output] = self._integer_node(node)
            return
        match op:
            case Unary() | Binary() | Where() | Scalar():
                if not isinstance(op, Scalar) and not self.inlined(node.output):
                    self._note(node)
                    self.ref(node.output)
            case Cast(DType.BF16) | QuantizeRows():
                self._note(node)
                self._operand(node)
            case Cast():
                if not self._joins(node.output):
                    self.ref(node.output)
            case GatherRows():
                self.refs[node.output] = self.refs[node.inputs[0]]
            case View() | Expand() | Slice() | Permute():
                self.refs[node.output] = self._move(node)
            case _:
                self._note(node)
                self._compute(node)

    def _note(self, node: Node) -> None:
        types = ", ".join(str(v.type) for v in node.outputs)
        self.lines.append(f"// {node.op.mnemonic()} -> {types}")

    def _is_integer(self, node: Node) -> bool:
        types = [v.type for v in node.outputs]
        return all(isinstance(t, TensorType) and t.dtype in _INTS for t in types) and not isinstance(node.op, Scalar)

    def _integer_node(self, node: Node) -> Int:
        match node.op:
            case Cast() | View() | Expand() | GatherRows():
                return Int(self.integer(node.inputs[0]))
            case Binary(fn) if fn in _INT_OPERATORS:
                a, b = (self.integer(v) for v in node.inputs)
                return Int(f"({a} {_INT_OPERATORS[fn]} {b})")
        raise IRError(f"rows kernel: {node.op} on integers at {node.loc or 'no module'} has no CPU code")

    def _move(self, node: Node) -> Ref:
        shape = _rest(node.output.tensor)
        rowed = node.inputs[0].tensor.shape[:1] == node.output.tensor.shape[:1]
        match node.op:
            case View():
                return dense(self.contiguous(node.inputs[0]).pointer, shape)
            case Expand():
                return self.ref(node.inputs[0]).broadcast(shape)
            case Slice(axis, start, stop, step):
                return self.ref(node.inputs[0]).sliced(axis - rowed, start, stop, step)
            case Permute(perm):
                return self.ref(node.inputs[0]).permuted([p - 1 for p in perm[1:]] if rowed else perm)
        raise AssertionError(node.op)

    def _operand(self, node: Node) -> None:
        x = self.contiguous(node.inputs[0])
        fmt = operand_format(node.output.tensor)
        if node.output not in self.destination:
            raise IRError(f"rows kernel: {node.op} at {node.loc or 'no module'} is not an operand of a linear")
        pointer = self.destination[node.output]
        self.lines.append(f"quantize_row<{fmt.cpp}>({x.pointer}, {x.size}, {pointer});")

    def _pointwise_into(self, node: Node, out: Ref) -> None:
        leaves: list[Ref] = []
        text = self._expression(node, out.shape, leaves)
        if node.output.tensor.dtype is DType.BOOL:
            text = f"from_mask({text})"
        self.lines += pointwise(out, leaves, lambda loads: text.format(*loads))

    def _expression(self, node: Node, shape: tuple[int, ...], leaves: list[Ref]) -> str:
        args: list[str] = []
        for value in node.inputs:
            source = self.producers.get(value)
            if source is not None and isinstance(source.op, Scalar):
                args.append(Number(literal(source.op.value)))
            elif isinstance(self.refs.get(value), Int):
                args.append(f"splat((float)({self.integer(value)}))")
            elif (
                source is not None
                and isinstance(source.op, _POINTWISE)
                and value not in self.refs
                and self._joins(value)
            ):
                args.append(self._expression(source, shape, leaves))
            else:
                load = f"{{{len(leaves)}}}"
                args.append(f"to_mask({load})" if value.tensor.dtype is DType.BOOL else load)
                leaves.append(self.ref(value).broadcast(shape))
        return expression(node, args)

    def _joins(self, value: Value) -> bool:
        source = self.producers[value]
        is_float_of_int = isinstance(source.op, Cast) and isinstance(self.refs.get(source.inputs[0]), Int)
        return is_float_of_int or self.inlined(value)

    def _compute(self, node: Node) -> None:
        match node.op:
            case Concat(axis):
                self._concat(node, axis - 1)
            case Embedding():
                self._embedding(node)
            case RmsNorm() | LayerNorm() | Softmax():
                self._along_last(node)
            case Reduce(fn, axis):
                self._reduce(node, fn, axis - 1)
            case RopeTable():
                self._rope_table(node)
            case Rope(style):
                x, cos, sin = (self.contiguous(v) for v in node.inputs)
                out = self.fresh(node.output)
                cpp = "HALVES" if style is RopeStyle.HALF else "INTERLEAVED"
                heads, width = x.shape
                self.lines.append(
                    f"rope_row<Rope::{cpp}>({x.pointer}, {out.pointer}, {heads}, {width}, {cos.size}, "
                    f"{cos.pointer}, {sin.pointer});"
                )
                self.refs[node.output] = out
            case KvWrite():
                k, v = (self.contiguous(value) for value in node.inputs[1:3])
                position, seq = (self.integer(value) for value in node.inputs[3:5])
                i = len(self.cache_writes)
                self.cache_writes.append(node.op)
                self.lines.append(f"kv_write(pool_{i}, slot_{i}, {seq}, {position}, {k.pointer}, {v.pointer});")
            case _:
                raise IRError(f"{node.op} at {node.loc or 'no module'} has no CPU code")

    def _concat(self, node: Node, axis: int) -> None:
        out = self.fresh(node.output)
        start = 0
        for value in node.inputs:
            ref = self.ref(value)
            stop = start + ref.shape[axis]
            self.lines += pointwise(out.sliced(axis, start, stop, 1), [ref], lambda loads: loads[0])
            start = stop
        self.refs[node.output] = out

    def _embedding(self, node: Node) -> None:
        table, ids, *scales = node.inputs
        out = self.fresh(node.output)
        pointer = self.refs[table]
        assert isinstance(pointer, Ref)
        index, width = self.integer(ids), out.size
        type_ = table.tensor
        if type_.layout is not None:
            fmt = panel_format(type_).cpp
            scale = self.ref(scales[0]).pointer if scales else "nullptr"
            self.lines.append(f"embed_row<{fmt}>({pointer.pointer}, {scale}, {index}, {width}, {out.pointer});")
        elif type_.dtype is DType.F32:
            self.lines.append(f"gather_row({pointer.pointer}, {index}, {out.pointer}, {width});")
        else:
            self.lines.append(f"gather_row_bf16((const uint16_t*){pointer.pointer}, {index}, {out.pointer}, {width});")
        self.refs[node.output] = out

    def _along_last(self, node: Node) -> None:
        x = self.contiguous(node.inputs[0])
        affine = [self.contiguous(v).pointer for v in node.inputs[1:]]
        out = self.fresh(node.output)
        width = x.shape[-1]

        def call(pointers: list[str]) -> list[str]:
            source, target = pointers
            match node.op:
                case RmsNorm(eps):
                    weight = affine[0] if affine else "nullptr"
                    return [f"rms_norm_row({source}, {weight}, {literal(eps)}, {target}, {width});"]
                case LayerNorm(eps, has_weight, has_bias):
                    weight = affine[0] if has_weight else "nullptr"
                    bias = affine[-1] if has_bias else "nullptr"
                    return [f"layer_norm_row({source}, {weight}, {bias}, {literal(eps)}, {target}, {width});"]
                case _:
                    return [f"softmax_row({source}, {target}, {width});"]

        outer = x.shape[:-1]
        self.lines += over_outer(outer, [Ref(r.pointer, outer, r.strides[:-1]) for r in (x, out)], call)
        self.refs[node.output] = out

    def _reduce(self, node: Node, fn: ReduceFn, axis: int) -> None:
        x = self.ref(node.inputs[0])
        last = [*(i for i in range(len(x.shape)) if i != axis), axis]
        x = x.permuted(last)
        if not x.contiguous:
            x = self._copied(x)
        out = self.fresh(node.output)
        width, outer = x.shape[-1], x.shape[:-1]
        out_rows = out.permuted(last)

        def call(pointers: list[str]) -> list[str]:
            source, target = pointers
            calls = {
                ReduceFn.SUM: f"sum_row({source}, {width})",
                ReduceFn.MEAN: f"sum_row({source}, {width}) / {width}.0f",
                ReduceFn.MAX: f"max_row({source}, {width})",
                ReduceFn.MIN: f"min_row({source}, {width})",
            }
            return [f"*({target}) = {calls[fn]};"]

        rows = [Ref(r.pointer, outer, r.strides[:-1]) for r in (x, out_rows)]
        self.lines += over_outer(outer, rows, call)
        self.refs[node.output] = out

    def _rope_table(self, node: Node) -> None:
        positions, inv_freq = node.inputs
        frequencies = self.ref(inv_freq)
        cos, sin = (self.fresh(v) for v in node.outputs)
        self.lines.append(
            f"rope_angles({self.integer(positions)}, {frequencies.pointer}, 1.0f, {cos.pointer}, {sin.pointer}, "
            f"{frequencies.size});"
        )
        self.refs.update(zip(node.outputs, (cos, sin), strict=True))


def _is_loop(node: Node) -> bool:
    """Is the node computed by a loop of expressions (not by a call on whole rows)?"""
    return isinstance(node.op, _POINTWISE) and not (isinstance(node.op, Cast) and node.op.dtype is DType.BF16)


def parameter_name(value: Value, index: int) -> str:
    """A C++ name that is the same in every layer: rows are x, weights go by the last part of their name."""
    type_ = value.tensor
    if type_.dtype in _INTS:
        return f"{re.sub(r'[^A-Za-z]', '_', value.name).strip('_') or 'n'}_{index}"
    rowed = bool(type_.shape) and isinstance(type_.shape[0], Poly)
    stem = "x" if rowed else re.sub(r"\W|_?\d+$", "_", value.name.rpartition(".")[2]).strip("_")
    return f"{stem or 'w'}_{index}"


def write_rows(body: Graph) -> RowsKernel:
    """Generate the kernel of a `rows` body. IRError names a node that has no CPU code."""
    return _Writer(body).write()


def _rest(type_: TensorType) -> tuple[int, ...]:
    """The dims of one row (all of them when the value has no rows)."""
    dims = type_.shape[1:] if type_.shape and isinstance(type_.shape[0], Poly) else type_.shape
    return tuple(int(str(d)) for d in dims)
