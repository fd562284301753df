"""Planted bugs of asynchronous copies: cp.async, mbarriers, TMA."""

from __future__ import annotations

from tests.emulator.planted import INIT, LOAD, MAP, Bug, K, out64, stage, with_map

COPIES_BUGS = (
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
#ifdef BUG
  cp_async_wait<0>();
#endif
}
""",
        stage,
        r"still in flight",
    ),
    Bug(
        "cp.async left behind",
        """LLMC_KERNEL(32, 1) k(const unsigned* in, unsigned* counter, float* out) {
  LLMC_SMEM(raw);
  const int t = threadIdx.x;
  if (t < 4) cp_async16(smem_addr(raw) + t * 16, in + t * 4);  // HERE
#ifdef FINE
  cp_async_commit();
#endif
  cp_async_wait<0>();
}
""",
        stage,
        r"exits while its cp.async is in flight",
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
)
