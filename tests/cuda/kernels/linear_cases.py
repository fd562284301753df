"""Linears under test: epilogues as IR bodies with their meaning in float64, and the runner that launches one case and
looks at every byte around the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ml_dtypes import bfloat16

from llmc.codegen.cuda.arguments import COUNTS, Input, KernelArgument, Operand, Output
from llmc.codegen.cuda.linear.epilogue import LinearEpilogue, write_epilogue
from llmc.codegen.cuda.linear.params import COUNTERS, PARTIALS, CountedBy, LinearParams
from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.emulator.session import Argument, DeviceArray
from llmc.ir.dims import Poly, sym
from llmc.ir.formats import Scheme
from llmc.ir.graph import Builder, Graph, Value
from llmc.ir.ops.kernel import GATE_RUN, PackedLinear
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn
from llmc.ir.types import DType, TensorType, tensor
from tests.cuda.kernels.references import F32_SUM, Expected, Wrong, compare, f64

if TYPE_CHECKING:
    from tests.cuda.harness import Lab, Shape

NUMPY = {DType.F32: np.dtype(np.float32), DType.BF16: np.dtype(bfloat16), DType.F16: np.dtype(np.float16)}
STEP = {DType.F32: 2.0**-20, DType.BF16: 2.0**-8, DType.F16: 2.0**-10}  # one rounding, and approximations before it
T = sym("T")
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """`meaning`: sums and extras, all float64, -> result; `extras`: dtype and kind (rows, vector, scalar)."""

    name: str
    extras: tuple[tuple[DType, str], ...]
    out: DType
    body: Callable[[Builder, list[Value]], Value]
    meaning: Callable[..., Array]
    gated: bool = False

    def types(self, width: int) -> list[TensorType]:
        shapes = {"rows": (T, width), "vector": (width,), "scalar": ()}
        return [tensor(dtype, *shapes[kind]) for dtype, kind in self.extras]

    def op(self, width: int) -> PackedLinear:
        b = Builder()
        sums = [Value(tensor(DType.F32, T, width), name) for name in ("a", "b")[: 1 + self.gated]]
        extras = [Value(t, "extra") for t in self.types(width)]
        out = self.body(b, [*sums, *extras])
        if self.out is not DType.F32:
            out = b.add(Cast(self.out), out)
        return PackedLinear(Scheme.BF16, Graph("epilogue", (*sums, *extras), (out,), tuple(b.nodes)), self.gated)


def _binary(fn: BinaryFn) -> Callable[[Builder, Value, Value], Value]:
    return lambda b, x, y: b.add(Binary(fn), x, y)


_add, _mul, _div = (_binary(fn) for fn in (BinaryFn.ADD, BinaryFn.MUL, BinaryFn.DIV))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


CASES = {
    c.name: c
    for c in (
        Case("plain", (), DType.F32, lambda b, v: v[0], lambda a: a),
        Case("bf16", (), DType.BF16, lambda b, v: v[0], lambda a: a),
        Case("f16", (), DType.F16, lambda b, v: v[0], lambda a: a),
        Case(
            "bias_residual",
            ((DType.F32, "vector"), (DType.F32, "rows")),
            DType.F32,
            lambda b, v: _add(b, v[2], _add(b, v[0], v[1])),
            lambda a, bias, r: r + (a + bias),
        ),
        Case(
            "bf16_residual",
            ((DType.BF16, "rows"),),
            DType.BF16,
            lambda b, v: _add(b, b.add(Cast(DType.F32), v[1]), v[0]),
            lambda a, r: r + a,
        ),
        Case(
            "wide_residual",  # half extras beside f32 results
            ((DType.BF16, "rows"), (DType.F32, "vector")),
            DType.F32,
            lambda b, v: _add(b, _mul(b, v[0], v[2]), b.add(Cast(DType.F32), v[1])),
            lambda a, r, s: a * s + r,
        ),
        Case(
            "narrow_residual",  # f32 extras beside half results
            ((DType.F32, "rows"), (DType.F32, "vector")),
            DType.BF16,
            lambda b, v: _add(b, _add(b, v[0], v[2]), v[1]),
            lambda a, r, bias: a + bias + r,
        ),
        Case(
            "softcap",
            ((DType.F32, "scalar"), (DType.F32, "vector")),
            DType.F32,
            lambda b, v: _mul(b, b.add(Unary(UnaryFn.TANH), _div(b, _add(b, v[0], v[2]), v[1])), v[1]),
            lambda a, cap, bias: np.tanh((a + bias) / cap) * cap,
        ),
        Case(
            "swiglu",
            (),
            DType.BF16,
            lambda b, v: _mul(b, b.add(Unary(UnaryFn.SILU), v[0]), v[1]),
            lambda a, u: _silu(a) * u,
            gated=True,
        ),
        Case(
            "gated_residual",
            ((DType.F32, "vector"), (DType.F32, "rows")),
            DType.F32,
            lambda b, v: _add(b, _mul(b, b.add(Unary(UnaryFn.SIGMOID), _add(b, v[0], v[2])), v[1]), v[3]),
            lambda a, u, bias, r: u / (1 + np.exp(-(a + bias))) + r,
            gated=True,
        ),
    )
}


def epilogue(name: str, width: int) -> LinearEpilogue:
    return write_epilogue(CASES[name].op(width))


def padded_rows(values: Array, columns: int, fill: float) -> Array:
    """Rows of `columns` columns, `fill` behind the values."""
    out = np.full((len(values), columns), fill, values.dtype)
    out[:, : values.shape[1]] = values
    return out


@dataclass(frozen=True)
class LinearData:
    """x and w in float64, of the operands' format; extras as the kernel gets them, without padding."""

    case: Case
    x: Array
    w: Array
    extras: list[Array]

    @staticmethod
    def make(p: LinearParams, case: Case, tokens: int, rng: np.random.Generator) -> LinearData:
        s, dtype = p.shape, NUMPY[p.shape.dtype]

        def normal(dtype: np.dtype, *shape: int, scale: float = 1.0) -> Array:
            return (rng.standard_normal(shape) * scale).astype(dtype)

        w = normal(dtype, s.weight_rows, s.k, scale=s.k**-0.5)
        if s.gated:
            w[~np.concatenate([_real(s.width)] * 2, 1).reshape(-1)] = 0
        shapes = {"rows": (tokens, s.width), "vector": (s.width,)}
        extras = [
            np.array(1.5, np.float32) if kind == "scalar" else normal(NUMPY[d], *shapes[kind])
            for d, kind in case.extras
        ]
        return LinearData(case, normal(dtype, tokens, s.k), w, extras)

    def expected(self, width: int) -> Expected:
        sums = f64(self.x) @ f64(self.w).T
        slack = np.abs(f64(self.x)) @ np.abs(f64(self.w)).T * F32_SUM + 1e-30
        results, slacks = ([sums], [slack])
        if self.case.gated:
            results, slacks = (_parts(m, width) for m in (sums, slack))
        extras = [f64(e) for e in self.extras]
        value = self.case.meaning(*results, *extras)
        tolerance = np.abs(value) * STEP[self.case.out]
        for i in range(len(results)):  # what the rounding of each sum may do to the result
            for sign in (-1, 1):
                moved = [r + sign * s * (i == j) for j, (r, s) in enumerate(zip(results, slacks, strict=True))]
                tolerance = tolerance + np.abs(self.case.meaning(*moved, *extras) - value)
        return Expected(value, tolerance + (np.abs(value) + 1) * STEP[DType.F32])


def _real(width: int) -> Array:
    """[runs, 16]: which rows of a gate run are channels."""
    runs = -(-width // GATE_RUN)
    return (np.arange(runs * GATE_RUN) < width).reshape(runs, GATE_RUN)


def _parts(m: Array, width: int) -> list[Array]:
    runs = m.reshape(len(m), -1, 2, GATE_RUN)
    return [runs[:, :, i].reshape(len(m), -1)[:, :width] for i in (0, 1)]


def launch(lab: Lab, p: LinearParams, data: LinearData, count: int, rows: int) -> Array:
    """Runs on a bucket of `rows` rows of which `count` are there; returns every column of every row, padding included.

    Behind column K of x, in rows that do not count, and behind the extras' columns lies NaN.
    """
    s, case = p.shape, data.case
    columns = s.row_bytes // 2
    x = padded_rows(
        np.concatenate([data.x[:count], np.full((rows - count, s.k), np.nan, data.x.dtype)]), columns, np.nan
    )
    counts = [-1, -1, -1, -1]
    counts[0 if p.counted is CountedBy.TOKENS else 2] = count
    out_type = tensor(case.out, T, s.width)
    out = lab.empty((rows, row_bytes(out_type) // case.out.num_bytes), NUMPY[case.out])
    given: dict[Operand, DeviceArray] = {
        Input(0): lab.array(x),
        Input(1): lab.constant(padded_rows(data.w, columns, 0.0)),
        COUNTS: lab.array(np.array(counts, np.int32)),
        Output(): out,
    }
    given |= {Input(2 + i): lab.array(_extra(data, i, p, count, rows)) for i in range(len(data.extras))}
    if p.is_split:
        given[PARTIALS] = lab.empty((p.workspace_bytes(rows) // 4,), np.float32)
        given[COUNTERS] = lab.array(np.zeros(p.num_counters(rows), np.uint32))
    lab.launch(p, p.grid(rows), *[_passed(lab, argument, given) for argument in p.arguments])
    if p.is_split and given[COUNTERS].numpy().any():
        raise Wrong(f"{p.label}: the counters are not zero again")
    return out.numpy()


def _passed(lab: Lab, argument: KernelArgument, given: Mapping[Operand, DeviceArray]) -> Argument:
    array, box = given[argument.operand], argument.box
    if box is None:
        return array
    return lab.emulator.tensor_map(array, (box.box_rows, box.box_columns), box.swizzle, box.columns)


def _extra(data: LinearData, index: int, p: LinearParams, count: int, rows: int) -> Array:
    values, type_ = data.extras[index], data.case.types(p.shape.width)[index]
    if not type_.shape or not isinstance(type_.shape[0], Poly):
        return values
    whole = np.concatenate([values[:count], np.full((rows - count, p.shape.width), np.nan, values.dtype)])
    return padded_rows(whole, row_bytes(type_) // type_.dtype.num_bytes, np.nan)


def run(lab: Lab, p: LinearParams, shape: Shape, rng: np.random.Generator) -> None:
    """shape: epilogue (a name of CASES), T (tokens that count), rows (of the bucket)."""
    count, rows = int(shape["T"]), int(shape["rows"])  # type: ignore[arg-type]
    data = LinearData.make(p, CASES[str(shape["epilogue"])], count, rng)
    out = launch(lab, p, data, count, rows)
    width = p.shape.width
    compare(p.label, out[:count, :width], data.expected(width))
    untouched = out.view(np.uint8) == 0xFF
    bytes_ = width * out.itemsize
    if not (untouched[count:].all() and untouched[:, bytes_:].all()):
        raise Wrong(f"{p.label}: wrote behind row {count} or column {width}")
