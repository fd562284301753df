"""The planted bugs: small kernels, each wrong in one way when BUG is defined and right when it is not.

The line whose report is expected carries `// HERE`. `run` launches the kernel; `expect` is a pattern in
the report.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmc.emulator.session import Emulator, Kernel

F32 = np.float32


@dataclass(frozen=True)
class Bug:
    name: str
    source: str
    run: Callable[[Emulator, Kernel], None]
    expect: str

    def line(self) -> int:
        """Of the marked line in `source`."""
        return 1 + next(i for i, row in enumerate(self.source.splitlines()) if "// HERE" in row)


def translation_unit(planted: bool) -> str:
    """All kernels in one source, k0, k1, ...; to the compiler each is a file bug.cu of its own."""
    parts = ['#include "device.cuh"', "#define BUG 1" if planted else "#define FINE 1"]
    for i, bug in enumerate(BUGS):
        parts += ['#line 1 "bug.cu"', bug.source.replace(" k(", f" k{i}(", 1), f"LLMC_EXPORT(k{i})"]
    return "\n".join(parts)


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
                k((1,), 64, 0, o, stream=streams[0].value, wait=False)
                e.call("cuEventRecord", event, streams[0])
                if not k.bug:  # type: ignore[attr-defined]
                    e.call("cuStreamWaitEvent", streams[1], event, ctypes.c_uint(0))
                k((1,), 64, 0, o, stream=streams[1].value, wait=False)
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

BUGS = [
    Bug(
        "missing barrier",
        K
        + """  s[t] = t;
#ifdef FINE
  __syncthreads();
#endif
  out[t] = s[t ^ 32];  // HERE
}
""",
        out64(),
        r"race|uninitialised",
    ),
    Bug(
        "shuffle taken for a barrier",
        K
        + """  s[t] = t;
  float v = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
#ifdef FINE
  __syncwarp();
#endif
  out[t] = s[t ^ 1] + v;  // HERE
}
""",
        out64(),
        r"race",
    ),
    Bug(
        "syncwarp across warps",
        K
        + """  s[t] = t;
#ifdef BUG
  __syncwarp();
#else
  __syncthreads();
#endif
  out[t] = s[t ^ 32];  // HERE
}
""",
        out64(),
        r"race|uninitialised",
    ),
    Bug(
        "divergent barrier",
        K
        + """  s[t] = t;
#ifdef BUG
  if (t < 32)
#endif
    __syncthreads();  // HERE
  out[t] = s[t];
}
""",
        out64(),
        r"deadlock",
    ),
    Bug(
        "two barriers for one",
        K
        + """#ifdef BUG
  if (t & 1) {
    __syncthreads();
  } else {
    __syncthreads();  // HERE
  }
#else
  __syncthreads();
#endif
  out[t] = 0;
}
""",
        out64(),
        r"divergent barrier",
    ),
    Bug(
        "wrong count of a named barrier",
        K
        + """  s[t] = t;
#ifdef BUG
  named_barrier_sync(1, 96);  // HERE
#else
  named_barrier_sync(1, 64);
#endif
  out[t] = s[t ^ 32];
}
""",
        out64(),
        r"96 threads",
    ),
    Bug(
        "uninitialised read",
        K
        + """#ifdef FINE
  s[t] = 1;
#endif
  out[t] = s[t];  // HERE
}
""",
        out64(),
        r"uninitialised read",
    ),
    Bug(
        "shared memory out of bounds",
        K
        + """#ifdef BUG
  s[t + 193] = 1;  // HERE
#else
  s[t + 192] = 1;
#endif
  out[t] = 0;
}
""",
        out64(),
        r"out of bounds",
    ),
    Bug(
        "out-of-bounds tail",
        K
        + """#ifdef FINE
  if (t < 60)
#endif
    out[t] = 1;  // HERE
}
""",
        out64(size=60),
        r"past the end of allocation",
    ),
    Bug(
        "misaligned vector",
        K
        + """#ifdef BUG
  store16(out + t % 2 + 1, Vec16{});  // HERE
#else
  if (t < 16) store16(out + t * 4, Vec16{});
#endif
}
""",
        out64(),
        r"misaligned|not aligned",
    ),
    Bug(
        "two blocks, one address",
        K
        + """#ifdef BUG
  out[t] = t;  // HERE
#else
  out[blockIdx.x * 32 + t] = t;
#endif
}
""",
        out64(threads=32, grid=2),
        r"race on global memory.*of block",
    ),
    Bug(
        "use after free",
        "LLMC_KERNEL(64, 1) k(float* out) {\n  out[threadIdx.x] = 1;  // HERE\n}\n",
        freed,
        r"use after free",
    ),
    Bug(
        "missing event",
        "LLMC_KERNEL(64, 1) k(float* out) {\n  out[threadIdx.x] += 1;  // HERE\n}\n",
        peer_stream("event"),
        r"race on global",
    ),
    Bug(
        "missing graph edge",
        "LLMC_KERNEL(64, 1) k(float* out) {\n  out[threadIdx.x] += 1;  // HERE\n}\n",
        peer_stream("graph"),
        r"race on global",
    ),
    Bug(
        "missing griddepcontrol.wait",
        """LLMC_KERNEL(64, 1) k(float* out) {
#ifdef FINE
  grid_wait();
#endif
  out[threadIdx.x] += 1;  // HERE
}
""",
        two_launches,
        r"race on global",
    ),
    Bug("shared memory not opted in", K + "  out[t] = 0;\n}\n", big_smem, r"cuFuncSetAttribute"),
    Bug(
        "cp.async not waited for",
        """LLMC_KERNEL(32, 1) k(const unsigned* in, unsigned* counter, float* out) {
  LLMC_SMEM(raw);
  const int t = threadIdx.x;
  if (t < 4) cp_async16(smem_addr(raw) + t * 16, in + t * 4);
  cp_async_commit();
#ifdef FINE
  cp_async_wait<0>();
#endif
  __syncthreads();
  if (t < 16 && blockIdx.x == 0) out[t] = reinterpret_cast<float*>(raw)[t];  // HERE
}
""",
        stage,
        r"still in flight",
    ),
    Bug(
        "counter without fence",
        """LLMC_KERNEL(32, 1) k(const unsigned* in, unsigned* counter, float* out) {
  const int t = threadIdx.x;
  out[blockIdx.x * 32 + t] = t;
  __syncthreads();
  bool last = false;
  if (t == 0) {
#ifdef FINE
    __threadfence();
#endif
    last = atomic_add(counter, 1u) == 1;
    __threadfence();
  }
  if (last) out[t] += out[32];  // HERE
}
""",
        stage,
        r"race on global memory",
    ),
    Bug(
        "divergent mma",
        K
        + """  float c[4] = {};
  u32 a[4] = {};
#ifdef BUG
  if (t % 32 < 16)
#endif
    mma_bf16(c, a, 0, 0);  // HERE
  out[t] = c[0];
}
""",
        out64(),
        r"deadlock",
    ),
    Bug(
        "lane 0 arrives for a warp still reading",
        K
        + """  const u32 bar = smem_addr(raw) + 512;
  if (t == 0) mbar_init(bar, 1);
  s[t] = t;
  __syncthreads();
  if (t < 32) {
    out[t] = s[t];
#ifdef FINE
    __syncwarp();
#endif
    if (t == 0) mbar_arrive(bar);
  } else {
    mbar_wait(bar, 0);
    s[t - 32] = 7;  // HERE
  }
}
""",
        out64(),
        r"race",
    ),
    Bug(
        "wrong arrival count",
        K
        + """  const u32 bar = smem_addr(raw) + 512;
#ifdef BUG
  if (t == 0) mbar_init(bar, 32);
#else
  if (t == 0) mbar_init(bar, 64);
#endif
  __syncthreads();
  s[t] = t;
  mbar_arrive(bar);
  mbar_wait(bar, 0);
  out[t] = s[t ^ 32];  // HERE
}
""",
        out64(),
        r"race|uninitialised",
    ),
    Bug(
        "mbarrier not fenced for TMA",
        MAP
        + """  if (t == 0) {
    mbar_init(bar, 1);
#ifdef FINE
    mbar_fence_init();
#endif
  }
  __syncthreads();
  if (t == 0) {
    mbar_expect_tx(bar, 8192);
    tma_load_2d(smem, &map, bar, 0, 0);  // HERE
  }
  mbar_wait(bar, 0);
}
""",
        with_map((64, 64), 128),
        r"not visible to the async proxy",
    ),
    Bug(
        "TMA bytes read before the barrier",
        MAP
        + INIT
        + LOAD
        + """#ifdef FINE
  mbar_wait(bar, 0);
#endif
  out[t] = raw[t];  // HERE
#ifdef BUG
  mbar_wait(bar, 0);
#endif
}
""",
        with_map((64, 64), 128),
        r"still in flight|uninitialised|TMA load",
    ),
    Bug(
        "too few bytes expected",
        MAP
        + INIT
        + """  if (t == 0) {
#ifdef BUG
    mbar_expect_tx(bar, 4096);
#else
    mbar_expect_tx(bar, 8192);
#endif
    tma_load_2d(smem, &map, bar, 0, 0);
  }
  mbar_wait(bar, 0);  // HERE
  out[t] = raw[t];
}
""",
        with_map((64, 64), 128),
        r"deadlock",
    ),
    Bug(
        "generic write without proxy fence",
        MAP
        + """  reinterpret_cast<float*>(raw)[t] = t;
  for (int i = t + 128; i < 2048; i += 128) reinterpret_cast<float*>(raw)[i] = 0;
#ifdef FINE
  fence_proxy_async();
#endif
  __syncthreads();
  if (t == 0) {
    tma_store_2d(&map, smem, 0, 0);  // HERE
    tma_commit();
    tma_wait<0>();
  }
}
""",
        with_map((64, 64), 128),
        r"fence.proxy.async",
    ),
    Bug(
        "stage reused under a TMA store",
        MAP
        + """  for (int i = t; i < 2048; i += 128) reinterpret_cast<float*>(raw)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store_2d(&map, smem, 0, 0);
    tma_commit();
#ifdef FINE
    tma_wait_read<0>();
#endif
    raw[0] = 1;  // HERE
    tma_wait<0>();
  }
}
""",
        with_map((64, 64), 128),
        r"still in flight",
    ),
    Bug(
        "wgmma read too early",
        MAP
        + INIT
        + LOAD
        + "  mbar_wait(bar, 0);\n"
        + WGMMA
        + """#ifdef BUG
  wgmma_wait<1>();
#else
  wgmma_wait<0>();
#endif
  out[t] = d[0];  // HERE
  wgmma_wait<0>();
}
""",
        with_map((64, 64), 128),
        r"accumulator registers",
    ),
    Bug(
        "wgmma without fence",
        MAP
        + INIT
        + LOAD
        + """  mbar_wait(bar, 0);
  float d[32] = {};
#ifdef FINE
  wgmma_fence();
#endif
  wgmma_ss<bf16>(d, wgmma_desc_sw128(smem), wgmma_desc_sw128(smem), true);  // HERE
  wgmma_commit();
  wgmma_wait<0>();
  out[t] = d[0];
}
""",
        with_map((64, 64), 128),
        r"without wgmma_fence",
    ),
    Bug(
        "stage released by one warp for all",
        MAP
        + INIT
        + LOAD
        + """  const u32 free_bar = bar + 8;
#ifdef BUG
  if (t == 0) mbar_init(free_bar, 1);
#else
  if (t == 0) mbar_init(free_bar, 4);
#endif
  __syncthreads();
  mbar_wait(bar, 0);
"""
        + WGMMA
        + """  wgmma_wait<0>();
#ifdef BUG
  if (t == 0) mbar_arrive(free_bar);
#else
  if (t % 32 == 0) mbar_arrive(free_bar);
#endif
  if (t == 0) {
    mbar_wait(free_bar, 0);
    mbar_expect_tx(bar, 8192);
    tma_load_2d(smem, &map, bar, 0, 0);  // HERE
  }
  mbar_wait(bar, 1);
  out[t] = d[0];
}
""",
        with_map((64, 64), 128),
        r"race on shared memory",
    ),
    Bug(
        "wrong swizzle",
        MAP
        + INIT
        + """  if (t == 0) {
    mbar_expect_tx(bar, 8192);
    tma_load_2d(smem, &map, bar, 0, 0);
  }
  mbar_wait(bar, 0);
  float d[32] = {};
  wgmma_fence();
#ifdef BUG
  const u64 desc = wgmma_desc_sw128(smem);
#else
  const u64 desc = u64(smem >> 4) | u64(1024 >> 4) << 16 | u64(128 >> 4) << 32;
#endif
  wgmma_ss<bf16>(d, desc, desc, true);  // HERE
  wgmma_commit();
  wgmma_wait<0>();
  out[t] = d[0];
}
""",
        with_map((64, 64), 0),
        r"swizzle",
    ),
]
