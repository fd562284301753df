"""linear against numpy: layouts, canonical arithmetic, tails, threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen import packing
from llmc.codegen.cpu.toolchain import find_toolchain
from llmc.codegen.packing import OperandRows, Packing
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.types import DType
from tests.kernels.conftest import VARIANTS, Kernels, load

Floats = npt.NDArray[np.float32]
FORMATS = tuple(map(Scheme.named, ("f32", "bf16", "int8_int8g0", "int8_int8g32", "int8_int8g128")))
# n and k around the panel (32), the bf16 block (32), the int8 step (64), and larger than one tile
SHAPES = ((1, 1), (33, 31), (64, 64), (70, 97), (96, 200), (200, 130))


def pointer(array: npt.NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data if array is not None else None)


def aligned(size: int, fill: int = 0) -> npt.NDArray[np.uint8]:
    """uint8 [size] at a multiple of 64 bytes."""
    buffer = np.full(size + 64, fill, np.uint8)
    return buffer[(-buffer.ctypes.data) % 64 :][:size]


class Linear:
    """One packed weight and how to run it."""

    def __init__(self, kernels: Kernels, fmt: Scheme, n: int, k: int, weight: Floats) -> None:
        self.kernels, self.fmt, self.n, self.k = kernels, fmt, n, k
        self.rows = OperandRows(fmt.operand)
        self.format_id = FORMATS.index(fmt)
        self.scales: Floats | None = None
        stored: packing.Bits
        if fmt == Scheme.BF16:
            stored = packing.round_bf16(weight)
            self.weight = packing.widen_bf16(stored)
        elif fmt.weight.element is DType.I8:
            stored, scales = quantize_channels(weight)
            self.scales = np.zeros(packing.round_up(n, 32), np.float32)
            self.scales[:n] = scales
            self.weight = stored.astype(np.float32)
        else:
            stored = self.weight = weight
        packed = Packing(fmt, WeightLayout.PANELS).pack(stored)
        self.panels = aligned(packed.size)
        self.panels[:] = packed

    def operand(self, x: Floats) -> npt.NDArray[np.uint8]:
        # Unused bytes of a row are poisoned: a kernel that read them would show.
        out = aligned(len(x) * self.rows.row_bytes(self.k), 0xFF)
        rows = np.ascontiguousarray(x)  # lives as long as the call
        self.kernels.lib.quantize(self.format_id, pointer(rows), len(x), self.k, pointer(out))
        return out

    def run(self, x: Floats, bias: Floats | None = None, threads: int = 1) -> Floats:
        out = np.full((len(x), self.n), np.nan, np.float32)
        operand = self.operand(x)
        failed = self.kernels.lib.run_linear(
            self.format_id,
            pointer(self.panels),
            pointer(self.scales),
            ctypes.c_int64(self.n),
            ctypes.c_int64(self.k),
            pointer(operand),
            ctypes.c_int64(len(x)),
            pointer(bias),
            pointer(out),
            threads,
        )
        assert not failed
        return out


def quantize_channels(w: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """w [n, k] -> (int8 [n, k], f32 scales [n]); symmetric, max|w| of a channel becomes 127."""
    scales = (np.max(np.abs(w), axis=1) / np.float32(127)).astype(np.float32)
    divisor = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(w / divisor), -127, 127).astype(np.int8), scales


def gated_order(width: int) -> npt.NDArray[np.int64]:
    """Row order of a gated weight over concat(gate, up) of 2 * width rows: 16 gate rows, their 16 up rows, and so on.

    -1 stands for a zero row. With it every panel holds the gate and the up part of the same 16 outputs.
    """
    outputs = np.arange(packing.round_up(width, 16), dtype=np.int64)
    gate = np.where(outputs < width, outputs, -1)
    up = np.where(outputs < width, outputs + width, -1)
    return np.stack([gate.reshape(-1, 16), up.reshape(-1, 16)], axis=1).reshape(-1)


def random(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized_rows(rows: OperandRows, x: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What quantize_row means: s8 values and scales [rows, groups], on x padded with zeros."""
    padded = np.zeros((len(x), rows.pad_k(x.shape[1])), np.float32)
    padded[:, : x.shape[1]] = x
    groups = padded.reshape(len(x), rows.num_scales(x.shape[1]), -1)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, np.float32(1)), np.float32(0))
    return np.rint(groups * inverse).astype(np.float64), (largest / np.float32(127)).astype(np.float64)


def reference(linear: Linear, x: Floats) -> npt.NDArray[np.float64]:
    weight = linear.weight.astype(np.float64)
    if linear.fmt == Scheme.BF16:
        return packing.widen_bf16(packing.round_bf16(x)).astype(np.float64) @ weight.T
    if linear.fmt.weight.element is DType.I8:
        assert linear.scales is not None
        q, scale = quantized_rows(linear.rows, x)
        rows = (q * scale).reshape(len(x), -1)[:, : linear.k]
        return rows @ weight.T * linear.scales[: linear.n]
    return x.astype(np.float64) @ weight.T


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_sizes_are_those_of_the_headers(kernels: Kernels, fmt: Scheme) -> None:
    for function in (kernels.lib.row_bytes, kernels.lib.panel_bytes):
        function.restype = ctypes.c_int64
    for k in (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 576, 640, 1536, 2048):
        assert kernels.lib.row_bytes(FORMATS.index(fmt), ctypes.c_int64(k)) == OperandRows(fmt.operand).row_bytes(k)
        assert kernels.lib.panel_bytes(FORMATS.index(fmt), ctypes.c_int64(k)) == Packing(
            fmt, WeightLayout.PANELS
        ).panel_bytes(k)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_matches_float64(kernels: Kernels, fmt: Scheme, n: int, k: int) -> None:
    linear = Linear(kernels, fmt, n, k, random(1, n, k))
    x, bias = random(2, 7, k), random(3, n)
    expected = reference(linear, x) + bias
    # f32 sums of k products: the error grows with sqrt(k) roundings of the size of the sum of magnitudes
    scale = np.abs(x).astype(np.float64) @ np.abs(reference_weight(linear)).T + np.abs(bias)
    assert np.max(np.abs(linear.run(x, bias) - expected) / scale) < 2.0**-24 * (4 + np.sqrt(k))


def reference_weight(linear: Linear) -> npt.NDArray[np.float64]:
    scales = 1.0 if linear.scales is None else linear.scales[: linear.n, None]
    return np.asarray(linear.weight.astype(np.float64) * scales)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_a_row_does_not_depend_on_company_or_threads(kernels: Kernels, fmt: Scheme) -> None:
    n, k = 200, 200
    linear = Linear(kernels, fmt, n, k, random(4, n, k))
    x = random(5, 70, k)
    alone = np.concatenate([linear.run(x[i : i + 1]) for i in range(len(x))])
    for rows in (*range(2, 40), 47, 48, 49, 63, 64, 65, 70):
        threads = rows % 3 + 1
        assert np.array_equal(linear.run(x[:rows], threads=threads), alone[:rows]), f"{rows} rows, {threads} threads"
    assert np.array_equal(linear.run(x[13:60], threads=2), alone[13:60])


def test_rows_beyond_one_chunk(kernels: Kernels) -> None:
    linear = Linear(kernels, Scheme.F32, 40, 3000, random(6, 40, 3000))
    x = random(7, 300, 3000)
    many = linear.run(x, threads=2)
    for i in (0, 95, 96, 191, 192, 299):
        assert np.array_equal(many[i], linear.run(x[i : i + 1])[0])


def bf16_blocks(x: Floats, weight: Floats) -> Floats:
    """The canonical bf16 order of tile.h: products are exact, so each fma is one f32 addition."""
    k = packing.round_up(x.shape[1], 32)
    a, b = np.zeros((len(x), k), np.float32), np.zeros((len(weight), k), np.float32)
    a[:, : x.shape[1]], b[:, : x.shape[1]] = x, weight
    total = np.zeros((len(x), len(weight)), np.float32)
    for block in range(0, k, 32):
        chain = np.zeros((2, len(x), len(weight)), np.float32)
        for i in range(32):
            chain[i % 2] += a[:, block + i, None] * b[None, :, block + i]
        total += chain[0] + chain[1]
    return total


def test_bf16_order_is_the_documented_one(kernels: Kernels) -> None:
    """Bit for bit, on every instruction set that sums in blocks; the AMX path (37 rows) and the fma path (2 rows)."""
    if kernels.target.has("avx512_bf16") and not kernels.target.has("amx_bf16"):
        pytest.skip("this target accumulates with vdpbf16ps")
    linear = Linear(kernels, Scheme.BF16, 70, 170, random(8, 70, 170))
    x = random(9, 37, 170)
    expected = bf16_blocks(packing.widen_bf16(packing.round_bf16(x)), linear.weight)
    assert np.array_equal(linear.run(x), expected)
    assert np.array_equal(linear.run(x[:2]), expected[:2])


@pytest.mark.parametrize("fmt", FORMATS[2:], ids=str)
def test_int8_extremes_are_exact(kernels: Kernels, fmt: Scheme) -> None:
    """All weights and activations at their limits: a saturating 16-bit product would show."""
    k = 256
    weight = np.ones((32, k), np.float32)
    weight[::2] = -1
    weight[:, 1::2] *= np.where(np.arange(32) % 4 < 2, 1, -1)[:, None]
    linear = Linear(kernels, fmt, 32, k, weight)
    x = np.full((5, k), 127, np.float32)
    x[1::2] = -127
    assert np.array_equal(linear.run(x), reference(linear, x).astype(np.float32))


@pytest.mark.parametrize("fmt", FORMATS[2:], ids=str)
def test_int8_operand_rows(kernels: Kernels, fmt: Scheme) -> None:
    k = 200
    x = random(10, 3, k)
    x[1, 40:170] = 0
    linear = Linear(kernels, fmt, 32, k, random(11, 32, k))
    rows = linear.operand(x).reshape(3, -1)
    groups, padded = linear.rows.num_scales(k), linear.rows.pad_k(k)
    q, scales = quantized_rows(linear.rows, x)
    assert np.array_equal(rows[:, :padded].view(np.int8), q.reshape(3, -1))
    got = np.ascontiguousarray(rows[:, padded : padded + 4 * groups]).view(np.float32)
    assert np.allclose(got, scales[:, :, 0], rtol=2e-7)
    zeros = np.ascontiguousarray(rows[:, padded + 4 * groups : padded + 8 * groups]).view(np.int32)
    assert np.array_equal(zeros, -128 * q.sum(axis=2))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_row_stays_alone_and_shows(kernels: Kernels, fmt: Scheme, bad: float) -> None:
    stays_alone(Linear(kernels, fmt, 40, 100, random(12, 40, 100)).run, bad)


def stays_alone(run: Callable[[Floats], Floats], bad: float) -> None:
    """Of nine rows of 100 inputs, the one with a bad number alone gives none that is finite."""
    x = random(13, 9, 100)
    good = run(x)
    x[4, 77] = bad
    out = run(x)
    assert not np.isfinite(out[4]).any()
    keep = np.arange(9) != 4
    assert np.array_equal(out[keep], good[keep])


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("tiny", [0.0, 1e-30, 1e-37, 1e-42])
def test_tiny_rows_give_no_nan(kernels: Kernels, fmt: Scheme, tiny: float) -> None:
    linear = Linear(kernels, fmt, 32, 64, random(14, 32, 64))
    out = linear.run(np.full((2, 64), tiny, np.float32))
    assert np.isfinite(out).all()
    assert np.max(np.abs(out)) <= 100 * max(tiny, 1e-30)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_embedding_reads_rows_back(kernels: Kernels, fmt: Scheme) -> None:
    n, k = 75, 131
    linear = Linear(kernels, fmt, n, k, random(15, n, k))
    expected = reference_weight(linear).astype(np.float32)
    for row in (0, 1, 15, 16, 31, 32, 63, 64, 74):
        out = np.empty(k, np.float32)
        kernels.lib.embed(
            FORMATS.index(fmt), pointer(linear.panels), pointer(linear.scales), ctypes.c_int64(row), k, pointer(out)
        )
        assert np.array_equal(out, expected[row])


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_gated_epilogue_writes_a_bf16_operand(kernels: Kernels, fmt: Scheme) -> None:
    width, k = 48, 96
    both = random(16, 2 * width, k)
    order = gated_order(width)
    linear = Linear(kernels, fmt, 2 * width, k, both[order])
    x = random(17, 21, k)
    plain = reference(linear, x)
    gate, up = np.empty((21, width)), np.empty((21, width))
    gate[:, order[order < width]] = plain[:, order < width]
    up[:, order[order >= width] - width] = plain[:, order >= width]
    out, operand = aligned(21 * OperandRows(Scheme.BF16.operand).row_bytes(width)), linear.operand(x)
    kernels.lib.run_gated(
        linear.format_id,
        pointer(linear.panels),
        pointer(linear.scales),
        ctypes.c_int64(2 * width),
        ctypes.c_int64(k),
        pointer(operand),
        ctypes.c_int64(21),
        pointer(out),
        2,
    )
    got = packing.widen_bf16(out.view(np.uint16).reshape(21, -1)[:, :width])
    expected = gate / (1 + np.exp(-gate)) * up
    assert np.max(np.abs(got - expected) / (np.abs(expected) + 1e-2)) < 2**-7


def test_gcc_gives_the_same_bits(gcc_kernels: Kernels, library_folder: Path) -> None:
    zig = load("cpu", find_toolchain({}), library_folder)
    for fmt in FORMATS:
        weight, x = random(18, 100, 150), random(19, 41, 150)
        a, b = Linear(gcc_kernels, fmt, 100, 150, weight), Linear(zig, fmt, 100, 150, weight)
        assert np.array_equal(a.run(x, threads=2), b.run(x)), fmt
        assert np.array_equal(a.run(x[:3]), b.run(x[:3])), fmt


def test_bf16_and_int8_agree_between_instruction_sets(library_folder: Path) -> None:
    """Where the order is the same, so are the bits: products of bf16 are exact, so fma or not makes no difference."""
    results = {}
    for name in VARIANTS:
        if name == "x86-64-v4+vnni+bf16":
            continue  # vdpbf16ps has its own order
        kernels = load(name, find_toolchain({}), library_folder)
        results[name] = Linear(kernels, Scheme.BF16, 64, 300, random(20, 64, 300)).run(random(21, 20, 300))
    first = next(iter(results.values()))
    for name, result in results.items():
        assert np.array_equal(result, first), name
