"""Weights streamed by rows have the bytes of the whole, for every kind of expression; safetensors reads them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from llmc.codegen import weights as module
from llmc.codegen.packing import Packing, stored_bytes, widen_bf16
from llmc.codegen.weights import DATA_ALIGNMENT, Evaluator, place_weights, sources, stored, weight_name, write_weights
from llmc.ir.formats import Packed, Part, Scheme, WeightLayout
from llmc.ir.graph import IRError
from llmc.ir.ops.constant import (
    Apply,
    Interleave,
    Literal,
    Origin,
    Pack,
    Quantize,
    Source,
    WeightExpr,
)
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.ops.shape import Concat, Expand, Permute, Slice, View
from llmc.ir.reference import weight as whole_weight
from llmc.ir.types import DType

Array = npt.NDArray[np.generic]


class Reader:
    """Random values by name; remembers the most rows that were read at once."""

    def __init__(self) -> None:
        self.most_bytes = 0

    def read(self, source: Source, rows: tuple[int, int] | None) -> Array:
        random = np.random.default_rng(zlib.crc32(source.name.encode()))
        floats = random.standard_normal(source.shape).astype(np.float32)
        values: Array = np.greater(floats, 0) if source.dtype is DType.BOOL else floats
        part = values if rows is None else values[rows[0] : rows[1]]
        self.most_bytes = max(self.most_bytes, part.nbytes)
        return part


SHAPES = st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 40), st.integers(1, 9)))


@st.composite
def exprs(draw: st.DrawFn, shape: tuple[int, ...] | None = None, depth: int = 3) -> WeightExpr:
    """An expression of a float32 (or rounded) value of any shape, of every op that passes may fold into a weight."""
    if shape is None:
        shape = draw(SHAPES)
    name = f"s{draw(st.integers(0, 99))}"
    kinds = ["source"]
    if depth > 0:
        kinds += ["unary", "binary", "where", "cast", "concat", "slice", "view", "literal"]
        kinds += ["permute", "interleave", "quantize"] if len(shape) == 2 else ["expand"]

    def again(shape: tuple[int, ...]) -> WeightExpr:
        return draw(exprs(shape, depth - 1))

    match draw(st.sampled_from(kinds)):
        case "unary":
            return Apply(Unary(draw(st.sampled_from([UnaryFn.NEG, UnaryFn.TANH, UnaryFn.ABS]))), (again(shape),))
        case "binary":
            args = (again(shape), again(_narrower(draw, shape)))
            fn = draw(st.sampled_from([BinaryFn.ADD, BinaryFn.MUL, BinaryFn.SUB, BinaryFn.MAXIMUM]))
            return Apply(Binary(fn), args if draw(st.booleans()) else args[::-1])
        case "where":
            return Apply(Where(), (Source(name, DType.BOOL, shape), again(shape), again(_narrower(draw, shape))))
        case "cast":
            rounded = Apply(Cast(draw(st.sampled_from([DType.BF16, DType.F16]))), (again(shape),))
            return Apply(Cast(DType.F32), (rounded,))
        case "concat":
            axis = draw(st.integers(0, len(shape) - 1))
            parts = draw(st.lists(st.integers(0, shape[axis]), max_size=2).map(sorted))
            cuts = [0, *parts, shape[axis]]
            sizes = [b - a for a, b in pairwise(cuts) if b > a]
            return Apply(Concat(axis), tuple(again((*shape[:axis], n, *shape[axis + 1 :])) for n in sizes))
        case "slice":
            axis = draw(st.integers(0, len(shape) - 1))
            start, step = draw(st.integers(0, 5)), draw(st.sampled_from([1, 1, 2, 3]))
            stop = start + (shape[axis] - 1) * step + 1
            bigger = (*shape[:axis], stop + draw(st.integers(0, 3)), *shape[axis + 1 :])
            return Apply(Slice(axis, start, stop, step), (again(bigger),))
        case "view":
            return Apply(View(shape), (again((math.prod(shape),)),))
        case "literal":
            return Apply(Expand(shape), (Literal(draw(st.sampled_from([0.0, -1.5]))),))
        case "permute":
            return Apply(Permute((1, 0)), (again(shape[::-1]),))
        case "expand":
            return Apply(Expand(shape), (again((1,)),))
        case "interleave":
            rows, count = draw(st.sampled_from((1, 2, 16))), draw(st.integers(1, 3))
            n = -(-shape[0] // count) + draw(st.integers(0, 20))
            stacked = Apply(Interleave(rows), tuple(again((n, shape[1])) for _ in range(count)))
            start = draw(st.integers(0, stacked.type.static_shape()[0] - shape[0]))
            return Apply(Slice(0, start, start + shape[0]), (stacked,))
        case "quantize":
            data = Apply(Quantize(Scheme.INT8.weight, Part.DATA), (again(shape),))
            return Apply(Cast(DType.F32), (data,))
    return Source(name, DType.F32, shape, draw(st.sampled_from(Origin)))


def _narrower(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    return draw(st.sampled_from([shape, shape[-1:], (1, *shape[1:]), (*shape[:-1], 1)]))


@settings(max_examples=150, deadline=None)
@given(exprs(), st.data())
def test_rows_are_those_of_the_whole(expr: WeightExpr, data: st.DataObject) -> None:
    reader = Reader()
    want = whole_weight(expr, lambda s: reader.read(s, None))
    size = want.shape[0]
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    found = Evaluator(reader).rows(expr, start, stop)
    assert found.shape == want[start:stop].shape
    assert np.array_equal(np.asarray(found, np.float64), np.asarray(want[start:stop], np.float64))


@settings(max_examples=60, deadline=None)
@given(exprs(), st.integers(1, 400))
def test_pieces_join_to_the_whole(expr: WeightExpr, chunk: int) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "CHUNK_VALUES", chunk)
    try:
        pieces = list(stored(expr, Reader()))
    finally:
        patch.undo()
    want = np.asarray(whole_weight(expr, lambda s: Reader().read(s, None)), np.float32)
    assert b"".join(p.tobytes() for p in pieces) == want.tobytes()
    assert sum(p.nbytes for p in pieces) == stored_bytes(expr.type)


W = Source("model.w", DType.F32, (70, 50))
V = Source("model.v", DType.F32, (70, 50))
PACKED = [
    Apply(Pack(Scheme.F32, WeightLayout.PANELS), (Apply(Cast(DType.F32), (W,)),)),
    Apply(Pack(Scheme.BF16, WeightLayout.PANELS), (Apply(Cast(DType.BF16), (W,)),)),
    Apply(Pack(Scheme.BF16, WeightLayout.ROWS), (Apply(Cast(DType.BF16), (W,)),)),
    Apply(Pack(Scheme.F16, WeightLayout.ROWS), (Apply(Cast(DType.F16), (W,)),)),
    Apply(
        Pack(Scheme.BF16, WeightLayout.ROWS),
        (Apply(Interleave(16), (Apply(Cast(DType.BF16), (W,)), Apply(Cast(DType.BF16), (V,)))),),
    ),
    Apply(Pack(Scheme.INT8, WeightLayout.PANELS), (Apply(Quantize(Scheme.INT8.weight, Part.DATA), (W,)),)),
    *(
        Apply(Pack(scheme, WeightLayout.PANELS), (Apply(Quantize(scheme.weight, Part.DATA), (W,)),))
        for scheme in map(Scheme.named, ("int8_int8g128", "int4g32", "int4g64z", "nl4g32", "mxfp4", "fp8", "int4_bf16"))
    ),
    Apply(
        Pack(Scheme.BF16, WeightLayout.PANELS),
        (Apply(Interleave(16), (Apply(Cast(DType.BF16), (W,)), Apply(Cast(DType.BF16), (V,)))),),
    ),
    Apply(
        Pack(Scheme.INT8, WeightLayout.PANELS),
        (Apply(Interleave(16), tuple(Apply(Quantize(Scheme.INT8.weight, Part.DATA), (s,)) for s in (W, V))),),
    ),
]


def widen_f16(values: Array) -> npt.NDArray[np.float32]:
    return values.view(np.float16).astype(np.float32)


WIDEN: dict[DType, Callable[[Any], Array]] = {DType.BF16: widen_bf16, DType.F16: widen_f16}


@pytest.mark.parametrize("expr", PACKED, ids=lambda e: str(e.type))
@pytest.mark.parametrize("chunk", [1, 10_000, 16 << 20])
def test_packed_weights(expr: Apply, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_VALUES", chunk)
    reader = Reader()
    data = np.concatenate(list(stored(expr, reader)))
    n, k = expr.type.static_shape()
    assert data.size == stored_bytes(expr.type)
    layout = expr.type.layout
    assert isinstance(layout, Packed)
    found = Packing(layout.scheme, layout.order).unpack(data, n, k)
    want = whole_weight(expr, lambda s: Reader().read(s, None))
    widen = WIDEN.get(expr.type.dtype)
    got = widen(found) if widen else found
    assert np.array_equal(got, want)
    if chunk == 1:
        assert reader.most_bytes <= 32 * 50 * 4  # a panel at a time


def test_what_each_row_range_reads_is_bounded() -> None:
    """A fused q, k, v with scales folded in, of large parts: no part is read whole."""
    parts = tuple(Source(f"p{i}", DType.F32, (1000, 64)) for i in range(3))
    scaled = tuple(Apply(Binary(BinaryFn.MUL), (p, Source("g", DType.F32, (64,)))) for p in parts)
    reader = Reader()
    Evaluator(reader).rows(Apply(Concat(0), scaled), 990, 1010)
    assert reader.most_bytes <= 20 * 64 * 4


def test_the_file_is_read_by_safetensors(tmp_path: Path) -> None:
    scale = Apply(Quantize(Scheme.INT8.weight, Part.SCALE), (W,))
    plain = Apply(Cast(DType.F32), (Source("norm", DType.F32, (33,)),))
    other = Apply(Unary(UnaryFn.NEG), (Source("norm", DType.F32, (33,)),))
    constant = Apply(Binary(BinaryFn.ADD), (Literal(1.0), Literal(2.0)))
    placed = place_weights([PACKED[2], scale, plain, other, plain, PACKED[4], constant])
    written: list[int] = []
    path = tmp_path / "weights.safetensors"
    write_weights(path, placed, Reader(), written.append)
    tensors = load_file(path)
    assert list(tensors) and set(tensors) == {w.name for w in placed}
    assert [w.name for w in placed] == ["model.w", "model.w.scale", "norm", "norm#2", "model.w+model.v", "constant"]
    for w in placed:
        data = np.concatenate(list(stored(w.expr, Reader())))
        assert bytes(tensors[w.name][: data.size]) == data.tobytes()
        assert not tensors[w.name][data.size :].any()
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert (header + 8) % DATA_ALIGNMENT == 0
    assert sum(written) == sum(w.num_bytes for w in placed) and 0 not in written


def test_no_weights_make_a_file_too(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", [], Reader(), lambda _: None)
    assert load_file(tmp_path / "w") == {}


@pytest.mark.parametrize("n", [1, 17, 33, 70])
def test_scales_reach_to_the_end_of_the_last_panel(n: int) -> None:
    """The kernel loads 32 scales for every panel, also of the last weight in the file."""
    scale = Apply(Quantize(Scheme.INT8.weight, Part.SCALE), (Source("w", DType.F32, (n, 8)),))
    (placed,) = place_weights([scale])
    assert placed.num_bytes >= -(-n // 32) * 32 * 4


def test_values_beyond_float16_are_refused_by_name() -> None:
    class Large:
        def read(self, source: Source, rows: tuple[int, int] | None) -> np.ndarray:
            values = np.full((70, 50), 65504.0, np.float32)
            values[69, 49] = 65520.0  # the first that rounds beyond
            return values if rows is None else values[rows[0] : rows[1]]

    cast = Apply(Cast(DType.F16), (W,))
    for expr in (Apply(Pack(Scheme.F16, WeightLayout.ROWS), (cast,)), cast):
        with pytest.raises(IRError, match=r"model\.w: a value beyond float16's 65504: build in bf16"):
            list(stored(expr, Large()))


def test_names_say_what_a_weight_is_made_of() -> None:
    assert weight_name(PACKED[-1]) == "model.w+model.v" and [s.name for s in sources(PACKED[-1])] == [
        "model.w",
        "model.v",
    ]


@pytest.mark.parametrize("dtype", [DType.I64, DType.BOOL, DType.U8])
def test_what_no_kernel_reads_is_not_stored(dtype: DType) -> None:
    with pytest.raises(IRError, match=f"no weight is stored as {dtype.value}"):
        list(stored(Source("w", dtype, (3,)), Reader()))
