// Micro-kernels of linear on AMX tiles, for many rows: up to 32 operand rows times one panel, or 16 times two.
// One step takes 64 bytes of every operand row (32 bf16 or 64 s8) and 2 KB of every panel; panels and operand rows are
// in tile order as they stand (operand.h).
//
// numerics: the bits of tile.h. TDPBF16PS is two chains of 16 fma, even and odd k, from zero, denormals flushed, whose
//   sum is added to the accumulator (Intel SDM; tests/kernels/test_linear.py compares); TDPBSUD is exact.
#pragma once
#include <immintrin.h>

#include "tile.h"

namespace llmc {

constexpr int AMX_ROWS = 32;      // operand rows of one call at most
constexpr int AMX_LEAST_ROWS = 4; // below, the weights arrive slower than fma takes them
constexpr int STEP_BYTES = 64;    // of an operand row
constexpr int STEP_PANEL_BYTES = 16 * PANEL * 4;

template <class F> struct AmxFormat { static constexpr bool usable = false; };
template <> struct AmxFormat<Bf16> {
  static constexpr bool usable = true;
};
template <int G> struct AmxFormat<Int8<G>> {
  static constexpr bool usable = G % 64 == 0;
};

// What the tile registers are set to: 0-3 results, 4-5 operand rows, 5-7 weights.
struct AmxShape {
  int first = 0, second = 0;  // rows of the first and second row tile

  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  inline void set(int a, int b) {
    if (a == first && b == second) return;
    Config c = {};
    c.palette = 1;
    for (int i = 0; i < 8; ++i) c.row_bytes[i] = 64;
    // With one row tile: 0-3 are its four results and 5 holds weights. With two: 0-1 and 2-3, 5 the second operand.
    const uint8_t lower = (uint8_t)(b ? b : a);
    const uint8_t rows[8] = {(uint8_t)a, (uint8_t)a, lower, lower, (uint8_t)a, (uint8_t)(b ? b : 16), 16, 16};
    for (int i = 0; i < 8; ++i) c.rows[i] = rows[i];
    asm volatile("" ::"m"(c));  // gcc 12 declares 8 of the 64 bytes that the next line reads
    _tile_loadconfig(&c);
    first = a;
    second = b;
  }
  inline void release() {
    if (first) _tile_release();
    first = second = 0;
  }
};

#define LLMC_DOT(c, a, b) \
  if constexpr (INT8) _tile_dpbsud(c, a, b); \
  else _tile_dpbf16ps(c, a, b)

// Adds `steps` steps to the result tiles. TWO: two row tiles and one panel, else one row tile and P panels.
template <bool INT8, bool TWO, int P>
LLMC_INLINE void amx_steps(const uint8_t* w, int64_t panel, const uint8_t* x, int64_t row_bytes, int64_t steps,
                           int64_t ahead) {
  const int64_t line = PANEL * 4;
  for (int64_t s = 0; s < steps; ++s, w += STEP_PANEL_BYTES, x += STEP_BYTES) {
    if (ahead)
      LLMC_UNROLL for (int p = 0; p < P; ++p)
        for (int i = 0; i < STEP_PANEL_BYTES; i += 64) prefetch(w + p * panel + ahead + i);
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(6, w, line);
    LLMC_DOT(0, 4, 6);
    _tile_loadd(7, w + 64, line);
    LLMC_DOT(1, 4, 7);
    if constexpr (TWO) {
      _tile_loadd(5, x + 16 * row_bytes, row_bytes);
      LLMC_DOT(2, 5, 6);
      LLMC_DOT(3, 5, 7);
    } else if constexpr (P == 2) {
      _tile_loadd(5, w + panel, line);
      LLMC_DOT(2, 4, 5);
      _tile_loadd(6, w + panel + 64, line);
      LLMC_DOT(3, 4, 6);
    }
  }
}

template <bool TWO, int P> LLMC_INLINE void amx_zero() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (TWO || P == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}
template <bool TWO, int P> LLMC_INLINE void amx_store(float* out) {
  const int64_t stride = OUT_STRIDE * 4;
  _tile_stored(0, out, stride);
  _tile_stored(1, out + 16, stride);
  if constexpr (TWO) {
    _tile_stored(2, out + 16 * OUT_STRIDE, stride);
    _tile_stored(3, out + 16 * OUT_STRIDE + 16, stride);
  } else if constexpr (P == 2) {
    _tile_stored(2, out + 32, stride);
    _tile_stored(3, out + 48, stride);
  }
}

template <class F, bool TWO, int P> struct AmxKernel;

template <bool TWO, int P> struct AmxKernel<Bf16, TWO, P> {
  LLMC_INLINE void run(const Tile& t, int) {
    amx_zero<TWO, P>();
    amx_steps<false, TWO, P>(t.weights, Bf16::panel_bytes(t.k), t.rows, Bf16::row_bytes(t.k), Bf16::pad_k(t.k) / 32,
                             t.ahead);
    amx_store<TWO, P>(t.out);
  }
};

template <int G, bool TWO, int P> struct AmxKernel<Int8<G>, TWO, P> {
  using F = Int8<G>;
  LLMC_INLINE void run(const Tile& t, int rows) {
    const int64_t panel = F::panel_bytes(t.k), row_bytes = F::row_bytes(t.k), steps = F::group_len(t.k) / STEP_BYTES;
    for (int64_t g = 0; g < F::groups(t.k); ++g) {
      amx_zero<TWO, P>();
      amx_steps<true, TWO, P>(t.weights + g * steps * STEP_PANEL_BYTES, panel, t.rows + g * steps * STEP_BYTES,
                              row_bytes, steps, t.ahead);
      amx_store<TWO, P>(t.scratch);
      for (int r = 0; r < rows; ++r) {
        const uint8_t* row = t.rows + r * row_bytes;
        const f32x16 scale = splat(F::scales(row, t.k)[g]);
        const i32x16 zero = splat_i32(F::zeros(row, t.k)[g]);
        LLMC_UNROLL for (int v = 0; v < 2 * P; ++v) {
          const int at = r * OUT_STRIDE + v * 16;
          f32x16 total = g == 0 ? splat(0.0f) : load(t.out + at);
          store(t.out + at, fma(to_f32(add_i32(load_i32(t.scratch + at), zero)), scale, total));
        }
      }
    }
  }
};
#undef LLMC_DOT

template <class F, bool TWO, int P> __attribute__((noinline)) void amx_tile(const Tile& t, int rows) {
  AmxKernel<F, TWO, P>::run(t, rows);
}

// t.out and t.scratch: [AMX_ROWS][OUT_STRIDE]. Returns how many of the `left` rows it did.
template <class F> LLMC_INLINE int run_amx_tile(AmxShape* shape, const Tile& t, int64_t left, int panels) {
  const int rows = (int)(left < (panels == 2 ? 16 : 32) ? left : panels == 2 ? 16 : 32);
  shape->set(rows < 16 ? rows : 16, rows > 16 ? rows - 16 : 0);
  if (rows > 16) amx_tile<F, true, 1>(t, rows);
  else if (panels == 2) amx_tile<F, false, 2>(t, rows);
  else amx_tile<F, false, 1>(t, rows);
  return rows;
}

}  // namespace llmc
