"""Low-bit linears against numpy: integers and the canonical order of float32 operations, bit for bit."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen.cpu.toolchain import find_toolchain
from llmc.codegen.packing import OperandRows, Packing, ScalePacking, bits, round_bf16, round_up, widen_bf16
from llmc.ir.codes import code_values
from llmc.ir.formats import Part, Scheme, WeightLayout
from llmc.ir.quantise import Quantised, quantise
from llmc.ir.types import DType
from tests.kernels.coded_formats import CODED
from tests.kernels.conftest import Kernels, load
from tests.kernels.test_linear import FORMATS, Linear, aligned, pointer, quantized_rows, random, stays_alone

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
INT8_INPUTS = [s for s in CODED if s.operand.element is DType.I8]
BF16_INPUTS = [s for s in CODED if s.operand.element is DType.BF16]
SHAPES = ((1, 1), (33, 31), (70, 200), (40, 832))


class Table(ctypes.Structure):
    """templates/cpu/operand.h"""

    _fields_ = (("panels", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("offsets", ctypes.c_void_p))


class Coded:
    """A packed weight and how to run it."""

    def __init__(self, kernels: Kernels, scheme: Scheme, weight: Quantised) -> None:
        self.kernels, self.scheme, self.weight = kernels, scheme, weight
        self.n, self.k = weight.codes.shape
        self.arrays = [self._packed(part) for part in scheme.weight.parts]
        self.table = Table(*(a.ctypes.data for a in self.arrays))
        self.id = CODED.index(scheme)

    def _packed(self, part: Part) -> Bytes:
        numbers = self.scheme.weight
        if part is Part.DATA:
            return _aligned(Packing(self.scheme, WeightLayout.PANELS).pack(self.weight.codes))  # type: ignore[arg-type]
        dtype = numbers.scale if part is Part.SCALE else numbers.offset
        assert dtype is not None
        values = bits(self.weight.part(part), dtype)
        if numbers.group:
            return _aligned(ScalePacking(self.scheme, dtype).pack(values))
        padded = np.zeros(round_up(self.n, 32), values.dtype)
        padded[: self.n] = values
        return _aligned(padded.view(np.uint8))

    def operand(self, x: Floats) -> Bytes:
        out = aligned(len(x) * OperandRows(self.scheme.operand).row_bytes(self.k), 0xFF)
        x = np.ascontiguousarray(x)
        self.kernels.lib.codes_quantize(self.id, pointer(x), len(x), self.k, pointer(out))
        return out

    def run(self, x: Floats, threads: int = 1) -> Floats:
        out = np.full((len(x), self.n), np.nan, np.float32)
        shape = (ctypes.c_int64(self.n), ctypes.c_int64(self.k))
        operand = self.operand(x)
        failed = self.kernels.lib.codes_linear(
            self.id, ctypes.byref(self.table), *shape, pointer(operand), ctypes.c_int64(len(x)), pointer(out), threads
        )
        assert not failed
        return out


def _aligned(data: Bytes) -> Bytes:
    out = aligned(data.size)
    out[:] = data
    return out


def made(scheme: Scheme, n: int, k: int, seed: int = 1) -> Quantised:
    """A weight with rows and groups of zeros, and scales from 1e-30 (where float32 and bf16 hold them) to 1."""
    weight = random(seed, n, k)
    weight[n // 3] = 0
    weight[:, k // 3 : k // 2] = 0
    weight[n // 2] *= 1e-30 if scheme.weight.scale is not DType.F16 else 1e-3
    return quantise(weight, scheme.weight)


def fma(a: Floats, b: Floats, c: Floats, fused: bool) -> Floats:
    """Rounded once where fused: the product of two float32 is exact in the wider type, their sum nearly always."""
    if not fused:
        return np.asarray(a * b + c, np.float32)
    return np.asarray(a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble), np.float32)


def canonical(coded: Coded, x: Floats) -> Floats:
    """The arithmetic of templates/cpu/tile_codes.h, in int64 and float32."""
    scheme, numbers, k = coded.scheme, coded.scheme.weight, coded.k
    fused = coded.kernels.target.has("fma")
    rows = OperandRows(scheme.operand)
    q, input_scales = (a.astype(t) for a, t in zip(quantized_rows(rows, x), (np.int64, np.float32), strict=True))
    q, input_scales = q.reshape(len(x), -1), input_scales.reshape(len(x), -1)
    padded = q.shape[1]
    halves = 2 if numbers.element is DType.F4_E2M1 else 1
    codes = np.zeros((coded.n, padded), np.int64)
    codes[:, :k] = code_values(coded.weight.codes, numbers.element) * halves
    scales = coded.weight.scales / np.float32(halves)
    group, input_group = numbers.group or padded, scheme.operand.group or padded
    step = min(group, input_group)
    total = np.zeros((len(x), coded.n), np.float32)

    def offset(begin: int) -> tuple[Floats, Floats]:
        assert coded.weight.offsets is not None
        off = coded.weight.offsets[:, begin // group].astype(np.float32)
        off = off * scales[:, begin // group] if numbers.offset is DType.I8 else off
        sums = q[:, begin : begin + step].sum(1).astype(np.float32)
        return off[None], (input_scales[:, begin // input_group] * sums)[:, None]

    starts = [b for b in range(0, padded, step) if b // group < scales.shape[1]]
    for begin in starts:
        acc = (q[:, begin : begin + step] @ codes[:, begin : begin + step].T).astype(np.float32)
        by = input_scales[:, begin // input_group, None]
        if numbers.group:
            total = fma(acc, scales[None, :, begin // group] * by, total, fused)
            if numbers.offset:
                total = fma(*offset(begin), total, fused)
        else:
            total = fma(acc, by, total, fused)
    if not numbers.group:
        total = total * scales[:, 0]
        if numbers.offset:
            for begin in starts:
                total = fma(*offset(begin), total, fused)
    return total


@pytest.mark.parametrize("scheme", CODED, ids=str)
def test_sizes_are_those_of_the_headers(kernels: Kernels, scheme: Scheme) -> None:
    lib, id_ = kernels.lib, CODED.index(scheme)
    for function in (lib.codes_row_bytes, lib.codes_panel_bytes):
        function.restype = ctypes.c_int64
    for k in (1, 31, 32, 33, 64, 65, 127, 128, 129, 576, 14336):
        assert lib.codes_row_bytes(id_, ctypes.c_int64(k)) == OperandRows(scheme.operand).row_bytes(k)
        assert lib.codes_panel_bytes(id_, ctypes.c_int64(k)) == Packing(scheme, WeightLayout.PANELS).panel_bytes(k)


@pytest.mark.parametrize("scheme", INT8_INPUTS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int8_inputs_give_the_canonical_bits(kernels: Kernels, scheme: Scheme, n: int, k: int) -> None:
    coded, x = Coded(kernels, scheme, made(scheme, n, k)), random(2, 19, k)
    x[3] = 0
    x[:, k // 5 : k // 4] = 0
    expected = canonical(coded, x)
    for rows in range(1, 20):
        assert np.array_equal(coded.run(x[:rows], threads=rows % 2 + 1), expected[:rows]), f"{rows} rows"


@pytest.mark.parametrize("scheme", INT8_INPUTS, ids=str)
def test_extremes_and_long_rows_are_exact(kernels: Kernels, scheme: Scheme) -> None:
    """Codes and inputs at their ends, over 14,336 columns: a saturating or wrapping sum would show."""
    n, k = 32, 14336
    weight = np.ones((n, k), np.float32)
    weight[::2] = -1
    weight[1::4, ::3] = -1
    coded = Coded(kernels, scheme, quantise(weight, scheme.weight))
    x = np.full((7, k), 127, np.float32)
    x[1::2] = -127
    x[2, ::5] *= -1
    assert np.array_equal(coded.run(x), canonical(coded, x))


@pytest.mark.parametrize("scheme", BF16_INPUTS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_bf16_inputs_match_float64(kernels: Kernels, scheme: Scheme, n: int, k: int) -> None:
    coded, x = Coded(kernels, scheme, made(scheme, n, k)), random(2, 19, k)
    inputs, weight = widen_bf16(round_bf16(x)).astype(np.float64), coded.weight.floats()
    error = np.abs(coded.run(x) - inputs @ weight.T)
    assert (error <= 2.0**-24 * (4 + np.sqrt(k)) * (np.abs(inputs) @ np.abs(weight).T) + 1e-37).all()


@pytest.mark.parametrize("scheme", BF16_INPUTS, ids=str)
def test_bf16_sums_of_a_group_are_those_of_bf16(kernels: Kernels, scheme: Scheme) -> None:
    """Against the bf16 kernel on codes as weights, group by group, bit for bit."""
    n, k = 40, 448
    coded, x = Coded(kernels, scheme, made(scheme, n, k)), random(3, 9, k)
    values = code_values(coded.weight.codes, scheme.weight.element)
    group, fused = scheme.weight.group or k, kernels.target.has("fma")
    total = np.zeros((9, n), np.float32)
    for g, begin in enumerate(range(0, k, group)):
        part = slice(begin, begin + group)
        codes = values[:, part]
        if coded.weight.offsets is not None:
            codes = codes + coded.weight.offsets[:, g, None].astype(np.float32)
        bf16 = Linear(kernels, Scheme.BF16, n, codes.shape[1], np.ascontiguousarray(codes))
        sums = bf16.run(np.ascontiguousarray(x[:, part]))
        scale = coded.weight.scales[None, :, g]
        total = fma(sums, scale, total, fused) if scheme.weight.group else sums * scale
    assert np.array_equal(coded.run(x), total)


@pytest.mark.parametrize("scheme", CODED, ids=str)
def test_a_row_does_not_depend_on_company_or_threads(kernels: Kernels, scheme: Scheme) -> None:
    n, k = 100, 200
    coded, x = Coded(kernels, scheme, made(scheme, n, k, seed=4)), random(5, 101, k)
    alone = np.concatenate([coded.run(x[i : i + 1]) for i in range(len(x))])
    for rows in (*range(2, 20), 47, 96, 97, 101):
        assert np.array_equal(coded.run(x[:rows], threads=rows % 3 + 1), alone[:rows]), f"{rows} rows"


@pytest.mark.parametrize("scheme", CODED, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_stays_alone_and_shows(kernels: Kernels, scheme: Scheme, bad: float) -> None:
    stays_alone(Coded(kernels, scheme, quantise(random(12, 40, 100), scheme.weight)).run, bad)


@pytest.mark.parametrize("scheme", CODED, ids=str)
def test_embedding_reads_rows_back(kernels: Kernels, scheme: Scheme) -> None:
    n, k = 75, 131
    coded = Coded(kernels, scheme, made(scheme, n, k))
    expected = coded.weight.floats()
    for row in (0, 15, 16, 25, 31, 32, 37, 63, 64, 74):
        out = np.empty(k, np.float32)
        kernels.lib.codes_embed(coded.id, ctypes.byref(coded.table), ctypes.c_int64(row), k, pointer(out))
        assert np.allclose(out, expected[row], rtol=2.0**-22, atol=0)


def test_fp8_codes_widen_exactly(kernels: Kernels) -> None:
    """All 256, the two NaNs among them, from a column of ones."""
    codes = np.zeros((256, 64), np.uint8)
    codes[:, 0] = np.arange(256)
    scheme = Scheme.named("fp8")
    weight = Quantised(scheme.weight, codes, np.ones((256, 1), np.float32))
    x = np.zeros((1, 64), np.float32)
    x[0, 0] = 1
    out = Coded(kernels, scheme, weight).run(x)[0]
    assert np.array_equal(out, code_values(np.arange(256), DType.F8_E4M3), equal_nan=True)


def test_avx_vnni_gives_the_bits_of_avx2(library_folder: Path) -> None:
    plain, vnni = (load(name, find_toolchain({}), library_folder) for name in ("x86-64-v3", "x86-64-v3+avxvnni"))
    x = random(7, 5, 200)
    for scheme in INT8_INPUTS:
        weight = made(scheme, 70, 200)
        assert np.array_equal(Coded(vnni, scheme, weight).run(x), Coded(plain, scheme, weight).run(x)), scheme
    for scheme in (s for s in FORMATS if s.operand.element is DType.I8):
        a, b = (Linear(kernels, scheme, 70, 200, random(8, 70, 200)) for kernels in (plain, vnni))
        assert np.array_equal(a.run(x), b.run(x)), scheme
