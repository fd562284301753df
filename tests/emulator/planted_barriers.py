"""Planted bugs of threads: barriers, warps that run ahead, collectives that not all lanes reach."""

from __future__ import annotations

from tests.emulator.planted import Bug, K, out64

BARRIERS_BUGS = (
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
)
