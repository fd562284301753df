"""Nodes that C++ computes by a call on whole rows (templates/cpu/rows.h), rather than element by element."""

from __future__ import annotations

from llmc.codegen.cpu.expression import literal
from llmc.codegen.cpu.formats import MAX_PARTS, operand_type, table_type
from llmc.codegen.cpu.loops import Ref, over_outer, pointwise
from llmc.codegen.cpu.rows_values import RowValues
from llmc.ir.graph import IRError, Node
from llmc.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeStyle, RopeTable
from llmc.ir.ops.reduce import Reduce, ReduceFn, Softmax
from llmc.ir.ops.shape import Concat
from llmc.ir.types import DType


def compute(values: RowValues, node: Node) -> None:
    """IRError for a node that has no CPU code."""
    match node.op:
        case Concat(axis):
            _concat(values, node, axis - 1)
        case Embedding():
            _embedding(values, node)
        case RmsNorm() | LayerNorm() | Softmax():
            _along_last(values, node)
        case Reduce(fn, axis):
            _reduce(values, node, fn, axis - 1)
        case RopeTable():
            _rope_table(values, node)
        case Rope(style):
            x, cos, sin = (values.contiguous(v) for v in node.inputs)
            out = values.fresh(node.output)
            cpp = "HALVES" if style is RopeStyle.HALF else "INTERLEAVED"
            heads, width = x.shape
            values.lines.append(
                f"rope_row<Rope::{cpp}>({x.pointer}, {out.pointer}, {heads}, {width}, {cos.size}, "
                f"{cos.pointer}, {sin.pointer});"
            )
            values.refs[node.output] = out
        case _:
            raise IRError(f"{node.op} at {node.loc or 'no module'} has no CPU code")


def _concat(values: RowValues, node: Node, axis: int) -> None:
    out = values.fresh(node.output)
    start = 0
    for value in node.inputs:
        ref = values.ref(value)
        stop = start + ref.shape[axis]
        values.lines += pointwise(out.sliced(axis, start, stop, 1), [ref], lambda loads: loads[0])
        start = stop
    values.refs[node.output] = out


def _embedding(values: RowValues, node: Node) -> None:
    table, ids, *beside = node.inputs
    out = values.fresh(node.output)
    pointer = values.refs[table]
    assert isinstance(pointer, Ref)
    index, width = values.integer(ids), out.size
    type_ = table.tensor
    if type_.layout is not None:
        arrays = [pointer.pointer, *(values.ref(v).pointer for v in beside)]
        arrays += ["nullptr"] * (MAX_PARTS - len(arrays))
        values.lines.append(
            f"embed_row<{table_type(type_)}>({{{', '.join(arrays)}}}, {index}, {width}, {out.pointer});"
        )
    elif type_.dtype is DType.F32:
        values.lines.append(f"gather_row({pointer.pointer}, {index}, {out.pointer}, {width});")
    else:
        values.lines.append(f"gather_row_bf16((const uint16_t*){pointer.pointer}, {index}, {out.pointer}, {width});")
    values.refs[node.output] = out


def _along_last(values: RowValues, node: Node) -> None:
    x = values.contiguous(node.inputs[0])
    affine = [values.contiguous(v).pointer for v in node.inputs[1:]]
    out = values.fresh(node.output)
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
    values.lines += over_outer(outer, [Ref(r.pointer, outer, r.strides[:-1]) for r in (x, out)], call)
    values.refs[node.output] = out


def _reduce(values: RowValues, node: Node, fn: ReduceFn, axis: int) -> None:
    x = values.ref(node.inputs[0])
    last = [*(i for i in range(len(x.shape)) if i != axis), axis]
    x = x.permuted(last)
    if not x.contiguous:
        x = values.copied(x)
    out = values.fresh(node.output)
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
    values.lines += over_outer(outer, rows, call)
    values.refs[node.output] = out


def _rope_table(values: RowValues, node: Node) -> None:
    positions, inv_freq = node.inputs
    frequencies = values.ref(inv_freq)
    cos, sin = (values.fresh(v) for v in node.outputs)
    values.lines.append(
        f"rope_angles({values.integer(positions)}, {frequencies.pointer}, 1.0f, {cos.pointer}, {sin.pointer}, "
        f"{frequencies.size});"
    )
    values.refs.update(zip(node.outputs, (cos, sin), strict=True))


def operand(values: RowValues, node: Node) -> None:
    """An output in the format that a linear reads."""
    x = values.contiguous(node.inputs[0])
    fmt = operand_type(node.output.tensor)
    if node.output not in values.destination:
        raise IRError(f"rows kernel: {node.op} at {node.loc or 'no module'} is not an operand of a linear")
    pointer = values.destination[node.output]
    values.lines.append(f"quantize_row<{fmt}>({x.pointer}, {x.size}, {pointer});")
