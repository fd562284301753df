"""Planted bugs of wgmma: accumulators, stages, swizzles."""

from __future__ import annotations

from tests.emulator.planted import INIT, LOAD, MAP, WGMMA, Bug, with_map

WGMMA_BUGS = (
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
)
