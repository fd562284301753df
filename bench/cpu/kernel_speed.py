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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.limits import Limits, Peak
from bench.cpu.native import load_native
from llmc.codegen.cpu.target import CpuTarget, cpu_target
from llmc.codegen.packing import OperandRows, Packing, round_up
from llmc.ir.formats import Scheme, WeightLayout

FORMATS = {
    "f32": Scheme.F32,
    "bf16": Scheme.BF16,
    "int8": Scheme.named("int8_int8g0"),
    "int8g128": Scheme.named("int8_int8g128"),
}


@dataclass(frozen=True)
class Shape:
    name: str
    n: int
    k: int
    layers: int


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


class Bench:
    def __init__(self, target: CpuTarget, threads: int, rounds: int) -> None:
        self.lib = load_native("kernels.cpp", target)
        self.limits = Limits(target, threads)
        self.target, self.threads, self.rounds = target, threads, rounds

    def times(self) -> npt.NDArray[np.float64]:
        return np.zeros(self.rounds)

    def read(self, data: npt.NDArray[np.uint8]) -> float:
        """GB/s of a plain read, the best round."""
        return float(data.size / np.min(self.limits.read(data.ctypes.data, data.size, self.rounds)) / 1e9)

    def linear(self, fmt_id: int, fmt: Scheme, shape: Shape, rows: int, data: npt.NDArray[np.uint8]) -> float:
        """Seconds for one weight, the best round."""
        x = np.random.default_rng(1).standard_normal((rows, shape.k)).astype(np.float32)
        operand = aligned(rows * OperandRows(fmt.operand).row_bytes(shape.k))
        operand[:] = 0
        if fmt_id == 0:
            operand[:] = x.view(np.uint8).reshape(-1)
        out, scales = np.empty((rows, shape.n), np.float32), np.ones(round_up(shape.n, 32), np.float32)
        times = self.times()
        failed = self.lib.time_linear(
            fmt_id,
            pointer(data),
            ctypes.c_int64(data.size // shape.layers),
            shape.layers,
            pointer(scales) if fmt.name == "int8" else None,
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
    parser.add_argument("--formats", default="f32,bf16,int8,int8g128")
    parser.add_argument("--rows", default="1,8,512")
    parser.add_argument("--shapes", default="", help="only shapes whose name contains this")
    parser.add_argument("--attention", action="store_true", help="attention instead of linear")
    args = parser.parse_args()
    bench = Bench(cpu_target(args.target), args.threads, args.rounds)
    print(f"target {bench.target.mcpu}, {args.threads} threads, {args.rounds} rounds, the best of them")
    peaks = {kind: bench.limits.peak(kind) / 1e9 for kind in Peak}
    print("peaks, Gop/s: " + ", ".join(f"{k.name.lower()} {p:.0f}" for k, p in peaks.items() if p))
    if args.attention:
        report_attention(bench)
        return
    for name in args.formats.split(","):
        fmt_id, fmt = list(FORMATS).index(name), FORMATS[name]
        dots = {"f32": (Peak.FMA,), "bf16": (Peak.BF16_DOT, Peak.AMX_BF16)}.get(name, (Peak.INT8_DOT, Peak.AMX_INT8))
        peak = max(peaks[kind] for kind in dots) or peaks[Peak.FMA]
        for shape in SHAPES:
            if args.shapes not in shape.name:
                continue
            data = aligned(Packing(fmt, WeightLayout.PANELS).num_bytes(shape.n, shape.k) * shape.layers)
            if fmt_id == 1:  # finite bf16
                data.view(np.uint16)[:] &= np.uint16(0xBFFF)
            probe = bench.read(data)
            line = f"{shape.name:16} {name:8} {data.size / 1e6:6.1f} MB, read {probe:5.1f} GB/s"
            for rows in map(int, args.rows.split(",")):
                seconds = bench.linear(fmt_id, fmt, shape, rows, data)
                rate = data.size / shape.layers / seconds / 1e9
                flops = 2 * rows * shape.n * shape.k / seconds / 1e9
                line += f" | M={rows} {seconds * 1e6:7.1f} us "
                line += (
                    f"{rate:5.1f} GB/s {rate / probe:4.0%}" if rows <= 16 else f"{flops:5.0f} GF {flops / peak:4.0%}"
                )
            print(line, flush=True)


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
