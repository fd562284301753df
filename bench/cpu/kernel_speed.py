"""Speed of the CPU kernels beside this machine's limits: python bench/cpu/kernel_speed.py [--target T] [--threads N].

For every linear shape of SmolLM2-135M and Gemma3-270M: at 1 and 8 rows GB/s of weights beside a plain read of as many
bytes, at 512 rows GFLOP/s beside the peak of the instruction that its format uses. The weights of a shape are laid out
as often as the model has layers and used in turn, so that they come from where they come from in a decode step.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.limits import Limits, Peak
from bench.cpu.native import load_native
from llmc.codegen.cpu.target import CpuTarget, cpu_target
from llmc.codegen.packing import OperandRows, Packing, ScalePacking, bits, round_up
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.types import DType

DEFAULT = "f32,bf16,int8_int8g0,int8,int4,int8g32"


@dataclass(frozen=True)
class Shape:
    name: str
    n: int
    k: int
    layers: int


DOTS = {
    DType.F32: (Peak.FMA,),
    DType.BF16: (Peak.BF16_DOT, Peak.AMX_BF16),
    DType.I8: (Peak.INT8_DOT, Peak.AMX_INT8),
}
SHAPES = (
    Shape("SmolLM2 qkv", 960, 576, 30),
    Shape("SmolLM2 o", 576, 576, 30),
    Shape("SmolLM2 gate-up", 3072, 576, 30),
    Shape("SmolLM2 down", 576, 1536, 30),
    Shape("SmolLM2 head", 49152, 576, 1),
    Shape("Gemma3 qkv", 1536, 640, 18),
    Shape("Gemma3 o", 640, 1024, 18),
    Shape("Gemma3 gate-up", 4096, 640, 18),
    Shape("Gemma3 down", 640, 2048, 18),
    Shape("Gemma3 head", 262144, 640, 1),
)


def pointer(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """uint8 [size], page-aligned and touched."""
    buffer = np.empty(size + 4096, np.uint8)
    view = buffer[(-buffer.ctypes.data) % 4096 :][:size]
    view[:] = np.resize(np.random.default_rng(0).integers(0, 127, 1 << 16, np.uint8), size)
    return view


@dataclass(frozen=True)
class Weights:
    """As many weights of a shape as a model has layers, each with its scales and offsets behind it."""

    data: npt.NDArray[np.uint8]
    starts: tuple[int, ...]  # of the arrays of the first
    stride: int


def random_weights(scheme: Scheme, shape: Shape) -> Weights:
    """Finite ones: random codes, scales and offsets of about 1."""
    numbers, sizes = scheme.weight, [Packing(scheme, WeightLayout.PANELS).num_bytes(shape.n, shape.k)]
    beside = [numbers.scale, numbers.offset][: len(numbers.parts) - 1]
    groups = ScalePacking(scheme, DType.F32).groups(numbers.num_scales(shape.k))
    sizes += [round_up(round_up(shape.n, 32) * groups * d.num_bytes, 64) for d in beside if d]
    starts = tuple(sum(sizes[:i]) for i in range(len(sizes)))
    data = aligned(sum(sizes) * shape.layers).reshape(shape.layers, -1)
    data[:, : sizes[0]] &= {DType.BF16: 0xBF, DType.F8_E4M3: 0xBB}.get(numbers.element, 0xFF)  # no NaN, no infinity
    for start, size, dtype in zip(starts[1:], sizes[1:], beside, strict=False):
        assert dtype is not None
        one = bits(np.ones(size // dtype.num_bytes), dtype)
        data[:, start : start + size] = one.view(np.uint8)
    return Weights(data.reshape(-1), starts, data.shape[1])


class Bench:
    def __init__(self, target: CpuTarget, threads: int, rounds: int, schemes: Sequence[Scheme]) -> None:
        self.schemes = schemes
        self.lib = load_native("kernels.cpp", target, schemes)
        self.limits = Limits(target, threads)
        self.target, self.threads, self.rounds = target, threads, rounds

    def times(self) -> npt.NDArray[np.float64]:
        return np.zeros(self.rounds)

    def read(self, data: npt.NDArray[np.uint8]) -> float:
        """GB/s of a plain read, the best round."""
        return float(data.size / np.min(self.limits.read(data.ctypes.data, data.size, self.rounds)) / 1e9)

    def linear(self, scheme: Scheme, shape: Shape, rows: int, weights: Weights) -> float:
        """Seconds for one weight, the best round."""
        x = np.random.default_rng(1).standard_normal((rows, shape.k)).astype(np.float32)
        operand = aligned(rows * OperandRows(scheme.operand).row_bytes(shape.k))
        operand[:] = 0
        if scheme == Scheme.F32:
            operand[:] = x.view(np.uint8).reshape(-1)
        out, times = np.empty((rows, shape.n), np.float32), self.times()
        arrays = [weights.data.ctypes.data + start for start in weights.starts]
        table = (ctypes.c_void_p * 3)(*arrays)
        failed = self.lib.time_linear(
            self.schemes.index(scheme),
            table,
            ctypes.c_int64(weights.stride),
            shape.layers,
            ctypes.c_int64(shape.n),
            ctypes.c_int64(shape.k),
            pointer(operand),
            ctypes.c_int64(rows),
            pointer(out),
            self.threads,
            self.rounds,
            pointer(times),
        )
        assert not failed
        return float(np.min(times[1:])) / shape.layers

    def attention(self, q_heads: int, kv_heads: int, d: int, length: int, rows: int) -> float:
        """Seconds of one bf16 attention, the best round."""
        blocks = -(-length // 32)
        block_bytes = kv_heads * 32 * d * 4
        kv = aligned(blocks * block_bytes)
        kv[:] = 0
        table = np.random.default_rng(2).permutation(blocks).astype(np.int32)
        q = np.random.default_rng(3).standard_normal((rows, q_heads * d)).astype(np.float32)
        out, times = np.empty_like(q), self.times()
        failed = self.lib.time_attention(
            1,
            q_heads,
            kv_heads,
            d,
            ctypes.c_int64(length),
            rows,
            pointer(q),
            pointer(kv),
            pointer(table),
            ctypes.c_int64(block_bytes),
            pointer(out),
            self.threads,
            self.rounds,
            pointer(times),
        )
        assert not failed
        return float(np.min(times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--formats", default=DEFAULT, help=f"schemes, as --dtype takes them [default: {DEFAULT}]")
    parser.add_argument("--rows", default="1,8,16,512")
    parser.add_argument("--shapes", default="", help="only shapes whose name contains this")
    parser.add_argument("--attention", action="store_true", help="attention instead of linear")
    args = parser.parse_args()
    bench = Bench(cpu_target(args.target), args.threads, args.rounds, [*map(Scheme.named, args.formats.split(","))])
    print(f"target {bench.target.mcpu}, {args.threads} threads, {args.rounds} rounds, the best of them")
    peaks = {kind: bench.limits.peak(kind) / 1e9 for kind in Peak}
    print("peaks, Gop/s: " + ", ".join(f"{k.name.lower()} {p:.0f}" for k, p in peaks.items() if p))
    if args.attention:
        report_attention(bench)
        return
    for scheme in bench.schemes:
        dots = DOTS[scheme.operand.element]
        peak = max(peaks[kind] for kind in dots) or peaks[Peak.FMA]
        for shape in SHAPES:
            if args.shapes in shape.name:
                print(report(bench, scheme, shape, [*map(int, args.rows.split(","))], peak), flush=True)


def report(bench: Bench, scheme: Scheme, shape: Shape, rows: Sequence[int], peak: float) -> str:
    """Up to 16 rows: the rate at which the weight's bytes pass, beside a plain read of them; more: beside the peak."""
    weights = random_weights(scheme, shape)
    size = weights.data.size
    probe = bench.read(weights.data)
    line = f"{shape.name:16} {scheme.name:8} {size / 1e6:6.1f} MB, read {probe:5.1f} GB/s"
    for count in rows:
        seconds = bench.linear(scheme, shape, count, weights)
        rate = size / shape.layers / seconds / 1e9
        flops = 2 * count * shape.n * shape.k / seconds / 1e9
        line += f" | M={count} {seconds * 1e6:7.1f} us "
        of_peak = f" {flops / peak:4.0%}" if peak else ""  # no peak is measured without AVX-512
        line += f"{rate:5.1f} GB/s {rate / probe:4.0%}" if count <= 16 else f"{flops:5.0f} GF{of_peak}"
    return line


def report_attention(bench: Bench) -> None:
    for name, q_heads, kv_heads, d in (("SmolLM2", 9, 3, 64), ("Gemma3", 4, 1, 256)):
        for length, rows in ((200, 1), (2000, 1), (8000, 1), (512, 512), (2048, 512)):
            seconds = bench.attention(q_heads, kv_heads, d, length, rows)
            pairs = rows * length - rows * (rows - 1) // 2
            print(
                f"attention {name} {rows} rows ending at {length}: {seconds * 1e6:8.1f} us, "
                f"{4 * pairs * q_heads * d / seconds / 1e9:5.0f} GF, "
                f"KV {length * kv_heads * d * 4 / seconds / 1e9:5.1f} GB/s"
            )


if __name__ == "__main__":
    main()
