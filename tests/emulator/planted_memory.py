"""Planted bugs of memory: bytes nobody wrote, bytes of nobody, bytes of two blocks."""

from __future__ import annotations

from tests.emulator.planted import Bug, K, big_smem, freed, out64

MEMORY_BUGS = (
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
    Bug("shared memory not opted in", K + "  out[t] = 0;\n}\n", big_smem, r"cuFuncSetAttribute"),
)
