"""Weight expressions -> bytes, a few rows at a time, so that a build's memory does not grow with the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmc.codegen.packing import PANEL, Bits, Packing, ScalePacking, bits, round_up, stored_bytes
from llmc.ir.formats import Part
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.constant import (
    Apply,
    Dequantize,
    Interleave,
    Literal,
    Pack,
    PackScales,
    Quantize,
    Source,
    Weight,
    WeightExpr,
)
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.shape import Concat, Slice
from llmc.ir.reference import apply_op, constant

Array = npt.NDArray[np.generic]
DATA_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 128  # 32 floats: kernels load the channel scales of whole panels
CHUNK_VALUES = 2 << 20  # of the widest value that a piece is computed from: 8 MB in float32, and a few temporaries


def weight_exprs(entries: Iterable[Graph]) -> list[WeightExpr]:
    """What the weights of some entries (prefill, decode) are made of, in the order that the last one reads them."""
    graphs = list(entries)
    return list(dict.fromkeys(n.op.expr for g in reversed(graphs) for n in g.nodes if isinstance(n.op, Weight)))


class SourceReader(Protocol):
    """Values of checkpoint tensors and buffers."""

    def read(self, source: Source, rows: tuple[int, int] | None) -> Array:
        """float32 (or integer) values: all of them, or rows [start, stop) of the first axis."""


@dataclass(frozen=True)
class PlacedWeight:
    """A weight of the engine: its expression and where its bytes are in the data section of the weights file."""

    name: str
    expr: WeightExpr
    offset: int
    num_bytes: int


def place_weights(exprs: Sequence[WeightExpr]) -> list[PlacedWeight]:
    """Names and offsets in the given order, each at and up to a multiple of TENSOR_ALIGNMENT."""
    placed: list[PlacedWeight] = []
    taken: set[str] = set()
    offset = 0
    for expr in dict.fromkeys(exprs):
        base = weight_name(expr)
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}#{count}"
        taken.add(name)
        size = -(-stored_bytes(expr.type) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        placed.append(PlacedWeight(name, expr, offset, size))
        offset += size
    return placed


def weight_name(expr: WeightExpr) -> str:
    """The checkpoint tensors a weight is made of, joined; scales of a quantised weight end in .scale."""
    stored = {s.part for s in sources(expr) if s.part is not None}
    parts = ({op.part for op in _ops(expr) if isinstance(op, Quantize)} or stored) - {Part.DATA}
    names = "+".join(dict.fromkeys(s.name for s in sources(expr))) or "constant"
    return ".".join([names, *(part.value for part in parts)])


def sources(expr: WeightExpr) -> list[Source]:
    """The leaves of an expression, in order."""
    match expr:
        case Source():
            return [expr]
        case Apply(_, args):
            return [s for a in args for s in sources(a)]
    return []


def _ops(expr: WeightExpr) -> list[object]:
    return [expr.op, *(o for a in expr.args for o in _ops(a))] if isinstance(expr, Apply) else []


def write_weights(
    path: Path, placed: Sequence[PlacedWeight], reader: SourceReader, progress: Callable[[int], None]
) -> None:
    """Stream all weights to a safetensors file (packed bytes as U8). `progress` is told the bytes just written,
    which add up to those of the weights."""
    write_pieces(path, placed, lambda expr: stored(expr, reader), progress)


def write_pieces(
    path: Path,
    placed: Sequence[PlacedWeight],
    pieces: Callable[[WeightExpr], Iterator[npt.NDArray[np.uint8]]],
    progress: Callable[[int], None],
    workers: int = 1,
) -> None:
    """Write a weights file of the bytes that `pieces` gives for each weight, `workers` weights at a time.

    `progress` is told the bytes just written, which add up to those of the weights. `pieces` is called by several
    threads where there are several workers; `progress` is not.
    """
    header: dict[str, object] = {"__metadata__": {"format": "llmc"}}
    for weight in placed:
        span = [weight.offset, weight.offset + weight.num_bytes]
        header[weight.name] = {"dtype": "U8", "shape": [weight.num_bytes], "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % DATA_ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        data = file.tell()
        file.truncate(data + (placed[-1].offset + placed[-1].num_bytes if placed else 0))
        file.flush()

        def write(weight: PlacedWeight) -> Iterator[int]:
            """The bytes of each piece, when it is written; what is left up to the next weight is zero already."""
            at = data + weight.offset
            for piece in pieces(weight.expr):
                write_at(file.fileno(), piece, at)
                at += piece.nbytes
                yield piece.nbytes
            if left := data + weight.offset + weight.num_bytes - at:
                yield left

        if workers == 1:
            for weight in placed:
                for num_bytes in write(weight):
                    progress(num_bytes)
            return
        with ThreadPoolExecutor(workers) as pool:
            for num_bytes in pool.map(lambda weight: sum(write(weight)), placed):
                progress(num_bytes)


def write_at(descriptor: int, data: npt.NDArray[np.uint8], at: int) -> None:
    """All of `data` at a position of a file. Raises OSError."""
    left = data.data
    while left:
        done = os.pwrite(descriptor, left, at)
        left, at = left[done:], at + done


def stored(expr: WeightExpr, reader: SourceReader) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a weight as they lie on disk, in pieces."""
    evaluator = Evaluator(reader)
    type_ = expr.type
    shape = type_.static_shape()

    def as_bits(values: Array) -> Bits:
        try:
            return bits(values, type_.dtype)
        except IRError as error:
            raise IRError(f"{weight_name(expr)}: {error}") from error

    if isinstance(expr, Apply) and isinstance(expr.op, Pack):
        inner = expr.args[0]
        read = lambda lo, hi: as_bits(evaluator.rows(inner, lo, hi))  # noqa: E731
        n, k = shape
        packing = Packing(expr.op.scheme, expr.op.order)
        yield from packing.pack_stream(n, k, read, CHUNK_VALUES * packing.dtype.itemsize)
        return
    step = round_up(max(1, CHUNK_VALUES // _row_values(expr)), PANEL) if shape else 1  # whole runs of interleaved parts
    if isinstance(expr, Apply) and isinstance(expr.op, PackScales):
        packed = ScalePacking(expr.op.scheme, type_.dtype)
        for start in range(0, shape[0], step):
            yield packed.pack(as_bits(evaluator.rows(expr.args[0], start, min(shape[0], start + step))))
        return
    if not shape:
        yield as_bits(evaluator.whole(expr)).reshape(1).view(np.uint8)
        return
    for start in range(0, shape[0], step):
        values = as_bits(evaluator.rows(expr, start, min(shape[0], start + step)))
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _row_values(expr: WeightExpr) -> int:
    """Values in a row of the expression, or of the widest that it is computed from: a scale comes of a whole row."""
    parts = [_row_values(a) for a in expr.args] if isinstance(expr, Apply) else []
    return max([prod(expr.type.static_shape()[1:]), *parts])


class Evaluator:
    """Evaluates weight expressions by rows where each row of the result needs few rows of the leaves."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader
        self.last: tuple[WeightExpr, Array] | None = None

    def whole(self, expr: WeightExpr) -> Array:
        """All values. The last result is kept: expressions that cannot be cut are asked for again by rows."""
        if self.last is not None and self.last[0] == expr:
            return self.last[1]
        match expr:
            case Source():
                return self.reader.read(expr, None)
            case Literal():
                return constant(expr)
            case Apply(op, args):
                result = apply_op(op, [self.whole(a) for a in args])
                self.last = (expr, result)
                return result
        raise TypeError(f"unknown weight expression {expr}")

    def rows(self, expr: WeightExpr, start: int, stop: int) -> Array:
        """Rows [start, stop) of the first axis."""
        match expr:
            case Source():
                return self.reader.read(expr, (start, stop))
            case Apply(Unary() | Binary() | Where() | Cast() as op, args):
                return apply_op(op, [self._aligned(a, expr, start, stop) for a in args])
            case Apply(Quantize() | Dequantize() as op, args):
                return apply_op(op, [self.rows(arg, start, stop) for arg in args])
            case Apply(Pack() | PackScales(), (arg,)):
                return self.rows(arg, start, stop)
            case Apply(Concat(0), args):
                return self._concat(args, start, stop)
            case Apply(Slice(0, first, _, 1), (arg,)):
                return self.rows(arg, first + start, first + stop)
            case Apply(Slice() as op, (arg,)) if op.axis > 0:
                return apply_op(op, [self.rows(arg, start, stop)])
            case Apply(Interleave() as op, args):
                return self._interleave(op, args, start, stop)
        return self.whole(expr)[start:stop]

    def _aligned(self, arg: WeightExpr, out: WeightExpr, start: int, stop: int) -> Array:
        same = arg.type.rank == out.type.rank and arg.type.rank > 0 and arg.type.shape[0] == out.type.shape[0]
        return self.rows(arg, start, stop) if same else self.whole(arg)

    def _concat(self, args: tuple[WeightExpr, ...], start: int, stop: int) -> Array:
        parts, at = [], 0
        for arg in args:
            size = arg.type.static_shape()[0]
            lo, hi = max(start - at, 0), min(stop - at, size)
            if lo < hi:
                parts.append(self.rows(arg, lo, hi))
            at += size
        return np.concatenate(parts)

    def _interleave(self, op: Interleave, args: tuple[WeightExpr, ...], start: int, stop: int) -> Array:
        period = op.rows * len(args)
        n = args[0].type.static_shape()[0]
        first = start // period
        lo, hi = first * op.rows, min(-(-stop // period) * op.rows, n)
        return apply_op(op, [self.rows(a, lo, hi) for a in args])[start - first * period : stop - first * period]
