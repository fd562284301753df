"""What a planted bug is, and how its kernel is launched.

A bug is a small kernel, wrong in one way when BUG is defined and right when it is not. The line whose report is expected
carries `// HERE`. `run` launches the kernel; `expect` is a pattern in the report.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmc.emulator.session import Emulator, Kernel

F32 = np.float32

# Beginnings and parts of kernels.
K = "LLMC_KERNEL(1024, 1) k(float* out) {\n  LLMC_SMEM(raw);\n  float* s = reinterpret_cast<float*>(raw);\n  const int t = threadIdx.x;\n"
MAP = """LLMC_KERNEL(128, 1) k(const __grid_constant__ TensorMap map, float* out) {
  LLMC_SMEM(raw);
  const u32 smem = smem_addr(raw), bar = smem + 16384;
  const int t = threadIdx.x;
"""
INIT = """  if (t == 0) {
    mbar_init(bar, 1);
    mbar_fence_init();
  }
  __syncthreads();
"""
LOAD = """  if (t == 0) {
    mbar_expect_tx(bar, 8192);
    tma_load_2d(smem, &map, bar, 0, 0);
  }
"""
WGMMA = """  float d[32] = {};
  wgmma_fence();
  wgmma_ss<bf16>(d, wgmma_desc_sw128(smem), wgmma_desc_sw128(smem), true);
  wgmma_commit();
"""


@dataclass(frozen=True)
class Bug:
    name: str
    source: str
    run: Callable[[Emulator, Kernel], None]
    expect: str

    def line(self) -> int:
        """Of the marked line in `source`."""
        return 1 + next(i for i, row in enumerate(self.source.splitlines()) if "// HERE" in row)


def out64(threads: int = 64, smem: int = 1024, grid: int = 1, size: int = 64) -> Callable[[Emulator, Kernel], None]:
    """Launches k(float* out)."""

    def run(e: Emulator, k: Kernel) -> None:
        o = e.array(np.zeros(size, F32))
        try:
            k((grid,), threads, smem, o)
        finally:
            e.reset()
            o.free()

    return run


def with_map(
    box: tuple[int, int], swizzle: int, threads: int = 128, smem: int = 24 * 1024
) -> Callable[[Emulator, Kernel], None]:
    """Launches k(TensorMap, float* out) on a [64, 64] matrix of 2-byte elements."""

    def run(e: Emulator, k: Kernel) -> None:
        a, o = e.array(np.zeros((64, 64), np.uint16)), e.array(np.zeros(64 * 64, F32))
        try:
            k((1,), threads, smem, e.tensor_map(a, box, swizzle), o)
        finally:
            e.reset()
            a.free()
            o.free()

    return run


def freed(e: Emulator, k: Kernel) -> None:
    """The kernel is queued; BUG decides on the host: the memory goes before the kernel runs."""
    o = e.array(np.zeros(64, F32))
    k((1,), 64, 0, o, wait=False)
    try:
        if k.bug:  # type: ignore[attr-defined]
            o.free()
        e.call("cuCtxSynchronize")
    finally:
        e.reset()
    if not k.bug:  # type: ignore[attr-defined]
        o.free()


def two_launches(e: Emulator, k: Kernel) -> None:
    """The second is a programmatic dependent of the first."""
    o = e.array(np.zeros(64, F32))
    try:
        k((1,), 64, 0, o, wait=False)
        k((1,), 64, 0, o, programmatic=True)
    finally:
        e.reset()
        o.free()


def big_smem(e: Emulator, k: Kernel) -> None:
    k.opt_in = not k.bug  # type: ignore[attr-defined]
    out64(smem=64 << 10)(e, k)


def stage(e: Emulator, k: Kernel) -> None:
    """k(const unsigned* in, unsigned* counter, float* out) on two blocks."""
    a, c, o = e.array(np.zeros(64, np.uint32)), e.array(np.zeros(2, np.uint32)), e.array(np.zeros(64, F32))
    try:
        k((2,), 32, 64, a, c, o)
    finally:
        e.reset()
        for x in (a, c, o):
            x.free()


def peer_stream(kind: str) -> Callable[[Emulator, Kernel], None]:
    """k adds one to every element; two launches on two streams or graph nodes, ordered unless BUG."""

    def run(e: Emulator, k: Kernel) -> None:
        o = e.array(np.zeros(64, F32))
        try:
            if kind == "event":
                streams, event = [], ctypes.c_void_p()
                for _ in range(2):
                    s = ctypes.c_void_p()
                    e.call("cuStreamCreate", ctypes.byref(s), ctypes.c_uint(1))
                    streams.append(s)
                e.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
                k((1,), 64, 0, o, stream=streams[0].value or 0, wait=False)
                e.call("cuEventRecord", event, streams[0])
                if not k.bug:  # type: ignore[attr-defined]
                    e.call("cuStreamWaitEvent", streams[1], event, ctypes.c_uint(0))
                k((1,), 64, 0, o, stream=streams[1].value or 0, wait=False)
                e.call("cuCtxSynchronize")
            else:
                graph = e.graph()
                first = graph.kernel([], k, (1,), 64, 0, o)
                graph.kernel([] if k.bug else [first], k, (1,), 64, 0, o)  # type: ignore[attr-defined]
                graph.instantiate().launch()
                e.call("cuCtxSynchronize")
        finally:
            e.reset()
            o.free()

    return run
