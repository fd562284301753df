"""Weights that the checkpoint holds quantised: which numbers they are in, and their parts as they stand.

Rows may have been stacked, cut and reordered on the way to a linear: the same is done to each part.
"""

from __future__ import annotations

from dataclasses import replace

from llmc.ir.formats import Numbers, Part
from llmc.ir.ops.constant import Apply, Dequantize, WeightExpr
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.shape import Concat, Slice
from llmc.ir.types import DType


def stored_numbers(expr: WeightExpr) -> Numbers | None:
    """The numbers of all rows of a matrix; None where it is not stored quantised, or rows differ."""
    match expr:
        case Apply(Dequantize(numbers)):
            return numbers
        case Apply(Slice(0) | Cast(DType.F32), (arg,)):
            return stored_numbers(arg)
        case Apply(Concat(0), args):
            found = {stored_numbers(arg) for arg in args}
            return found.pop() if len(found) == 1 else None
    return None


def stored_part(expr: WeightExpr, numbers: Numbers, part: Part) -> WeightExpr | None:
    """A part of a matrix in these numbers without rounding it again; None where they do not hold what is stored."""
    found = stored_numbers(expr)
    if found is None or not _holds(numbers, found):
        return None
    made = _part(expr, part)
    wanted = numbers.part_type(part, expr.type).dtype
    return made if made.type.dtype is wanted else Apply(Cast(wanted), (made,))


def _holds(numbers: Numbers, stored: Numbers) -> bool:
    return replace(stored, scale=numbers.scale) == numbers and numbers.scale.holds(stored.scale)


def _part(expr: WeightExpr, part: Part) -> WeightExpr:
    match expr:
        case Apply(Dequantize(numbers), args):
            return args[numbers.parts.index(part)]
        case Apply(Cast(), (arg,)):
            return _part(arg, part)
        case Apply(op, args):
            return Apply(op, tuple(_part(arg, part) for arg in args))
    raise TypeError(f"{expr} is not stored quantised")
