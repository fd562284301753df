// The tile of bfloat16: pairs by vdpbf16ps, or blocks of 32 by fma (tile.h).
#pragma once
#include "tile.h"

namespace llmc {

// The even (ODD = 0) or odd k of one block of 32: acc[r][v] += x[r][2j + ODD] * w[2j + ODD][v]; x is f32.
template <int R, int P, int ODD>
LLMC_INLINE void bf16_chain(const uint8_t* w, int64_t panel, int64_t ahead, const float* x, f32x16 (&acc)[R][2 * P]) {
  LLMC_ROWS LLMC_VECTORS acc[r][v] = splat(0.0f);
  for (int j = 0; j < 16; ++j, w += PANEL * 4, x += 2) {
    f32x16 b[2 * P];
    LLMC_VECTORS {
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      i32x16 pairs = load_i32(p);
      b[v] = ODD ? pair_odd(pairs) : pair_even(pairs);
      if (!ODD) prefetch(p + ahead);
    }
    LLMC_ROWS {
      f32x16 a = splat(x[r * 32 + ODD]);
      LLMC_VECTORS acc[r][v] = fma(b[v], a, acc[r][v]);
    }
  }
}

template <int R, int P> struct TileKernel<Bf16, R, P> {
  static constexpr int WIDTH = 2 * P;

  LLMC_INLINE void blocks(const Tile& t) {
    const int64_t panel = Bf16::panel_bytes(t.k), stride = Bf16::row_bytes(t.k), padded = Bf16::pad_k(t.k);
    const uint8_t *w = t.weights, *rows = t.rows;
    float *x = t.scratch, *even = t.scratch + TILE_ROWS * OUT_STRIDE;
    for (int64_t k = 0; k < padded; k += 32, w += 16 * PANEL * 4, rows += 64) {
      LLMC_ROWS {
        const uint16_t* a = (const uint16_t*)(rows + r * stride);
        store(x + r * 32, load_bf16(a));
        store(x + r * 32 + 16, load_bf16(a + 16));
      }
      f32x16 acc[R][WIDTH];
      bf16_chain<R, P, 0>(w, panel, t.ahead, x, acc);
      LLMC_ROWS LLMC_VECTORS store(even + r * OUT_STRIDE + v * 16, acc[r][v]);
      bf16_chain<R, P, 1>(w, panel, t.ahead, x, acc);
      LLMC_ROWS LLMC_VECTORS {
        float* o = t.out + r * OUT_STRIDE + v * 16;
        f32x16 sum = load(even + r * OUT_STRIDE + v * 16) + acc[r][v];
        store(o, k == 0 ? 0.0f + sum : load(o) + sum);
      }
    }
  }

#if defined(LLMC_BF16)
  LLMC_INLINE void pairs(const Tile& t) {
    const int64_t panel = Bf16::panel_bytes(t.k), stride = Bf16::row_bytes(t.k), padded = Bf16::pad_k(t.k);
    const uint8_t *w = t.weights, *x = t.rows;
    __m512 acc[R][WIDTH];
    LLMC_ROWS LLMC_VECTORS acc[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded; k += 2, w += PANEL * 4, x += 4) {
      __m512bh b[WIDTH];
      LLMC_VECTORS {
        const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
        b[v] = (__m512bh)_mm512_loadu_si512(p);
        prefetch(p + t.ahead);
      }
      LLMC_ROWS {
        __m512bh a = (__m512bh)broadcast_4_bytes(x + r * stride).p[0];
        LLMC_VECTORS acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b[v], a);
      }
    }
    LLMC_ROWS LLMC_VECTORS _mm512_storeu_ps(t.out + r * OUT_STRIDE + v * 16, acc[r][v]);
  }
#endif

  LLMC_INLINE void run(const Tile& t) {
#if defined(LLMC_BF16)
    if constexpr (BF16_PAIRS) return pairs(t);
#endif
    blocks(t);
  }
};

}  // namespace llmc
