"""What this machine can do at most, measured: reading memory and multiplying.

python bench/cpu/limits.py [--threads N] [--mb N] [--json FILE]

With --json the figures are kept for `llmc build --limits FILE` and `llmc inspect --roofline --limits FILE`.
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from native import load_native

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.cpu.target import CpuTarget, cpu_target
from llmc.codegen.roofline import Peaks

Seconds = npt.NDArray[np.float64]


class Peak(enum.Enum):
    """Multiply-accumulates that limits.cpp can time; the value is its number there."""

    FMA = 0
    BF16_DOT = 1
    INT8_DOT = 2
    AMX_BF16 = 3
    AMX_INT8 = 4


class Limits:
    """Probes with `threads` threads."""

    def __init__(self, target: CpuTarget, threads: int) -> None:
        self.threads = threads
        self._native = load_native("limits.cpp", target)
        self._native.time_peak.restype = ctypes.c_double

    def read(self, address: int, num_bytes: int, rounds: int = 5) -> Seconds:
        """Seconds [rounds] of a plain read of the bytes at `address`, after one that is not counted."""
        seconds = np.zeros(rounds + 1)
        arguments = (ctypes.c_void_p(address), ctypes.c_int64(num_bytes), self.threads, rounds + 1)
        if self._native.time_read(*arguments, ctypes.c_void_p(seconds.ctypes.data)):
            raise RuntimeError(f"cannot start {self.threads} threads")
        return seconds[1:]

    def peak(self, kind: Peak, rounds: int = 200) -> float:
        """Operations per second of all threads (a multiply-accumulate is two), the best round.

        0 where the target has no such instruction.
        """
        seconds = np.full(rounds, np.inf)
        pointer = ctypes.c_void_p(seconds.ctypes.data)
        operations = float(self._native.time_peak(kind.value, self.threads, rounds, pointer))
        return operations * self.threads / float(np.min(seconds))

    def widest(self, int8: bool) -> tuple[Peak, float]:
        """The fastest multiply-accumulate this machine has for bf16, or for int8, and its rate."""
        kinds = (Peak.INT8_DOT, Peak.AMX_INT8) if int8 else (Peak.BF16_DOT, Peak.AMX_BF16)
        return max(((kind, self.peak(kind)) for kind in (Peak.FMA, *kinds)), key=lambda found: found[1])


def huge_pages(num_bytes: int) -> npt.NDArray[np.uint8]:
    """uint8 [num_bytes], written, on huge pages where the system gives them: the best case of a read."""
    memory = mmap.mmap(-1, num_bytes + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array = array[-array.ctypes.data % (2 << 20) :][:num_bytes]
    array[:] = 1
    return array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mb", type=int, default=270, help="size of the read")
    parser.add_argument("--json", type=Path, help="also write bandwidth (the median) and peaks to this file")
    args = parser.parse_args()
    target = cpu_target("cpu")
    limits = Limits(target, args.threads)
    data = huge_pages(args.mb * 10**6)
    rates = np.sort(data.size / limits.read(data.ctypes.data, data.size, 20) / 1e9)
    print(f"{target.mcpu}, {args.threads} threads, load average {os.getloadavg()[0]:.1f}")
    print(f"read {args.mb} MB: median {np.median(rates):.1f} GB/s, {rates[0]:.1f}..{rates[-1]:.1f}")
    peaks = {kind: limits.peak(kind) for kind in Peak}
    for kind, rate in peaks.items():
        if rate:
            print(f"{kind.name.lower():9} {rate / 1e9:7.0f} Gop/s")
    if args.json:
        found = MeasuredLimits(target.mcpu, args.threads, float(np.median(rates)) * 1e9, roofline_peaks(peaks))
        args.json.write_text(found.to_json())


def roofline_peaks(measured: Mapping[Peak, float]) -> Peaks:
    """By the format of a linear's operands; what a machine has no instruction for is widened to float32."""
    fma = measured[Peak.FMA]
    return Peaks(
        f32=fma or None,
        bf16=max(fma, measured[Peak.BF16_DOT], measured[Peak.AMX_BF16]) or None,
        s8=max(fma, measured[Peak.INT8_DOT], measured[Peak.AMX_INT8]) or None,
    )


if __name__ == "__main__":
    main()
