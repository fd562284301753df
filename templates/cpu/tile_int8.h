// The tile of int8 weights with a scale for the row and int8 inputs: exact inside a group (tile.h).
#pragma once
#include "tile.h"

namespace llmc {

template <int G, int R, int P> struct TileKernel<Int8<G>, R, P> {
  using F = Int8<G>;

  // Four k.
  LLMC_INLINE void step(const uint8_t* w, int64_t panel, const uint8_t* x, int64_t stride, int64_t ahead,
                        i32x16 (&acc)[R][2 * P]) {
#if defined(LLMC_VNNI)
    i32x16 b[2 * P];
    LLMC_VECTORS {
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      b[v] = load_i32(p);
      prefetch(p + ahead);
    }
    LLMC_ROWS {
      i32x16 a = broadcast_4_bytes(x + r * stride);
      LLMC_VECTORS acc[r][v] = dot_i8(acc[r][v], b[v], a);
    }
#else
    LLMC_VECTORS {  // widening needs registers: one vector of weights at a time
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      i32x16 b = load_i32(p);
      prefetch(p + ahead);
      LLMC_ROWS acc[r][v] = dot_i8(acc[r][v], b, broadcast_4_bytes(x + r * stride));
      load_again();
    }
#endif
  }

  LLMC_INLINE void run(const Tile& t) {
    const int64_t panel = F::panel_bytes(t.k), stride = F::row_bytes(t.k), len = F::group_len(t.k);
    const uint8_t *w = t.weights, *x = t.rows;
    const float* scales = F::scales(x, t.k);
    const int32_t* zeros = F::zeros(x, t.k);
    for (int64_t g = 0; g < F::groups(t.k); ++g, ++scales, ++zeros) {
      i32x16 acc[R][2 * P];
      LLMC_ROWS {
        i32x16 zero = broadcast_4_bytes((const uint8_t*)zeros + r * stride);
        LLMC_VECTORS acc[r][v] = zero;
      }
      for (int64_t k = 0; k < len; k += 4, w += PANEL * 4, x += 4) step(w, panel, x, stride, t.ahead, acc);
      LLMC_ROWS {
        f32x16 scale = splat(*(const float*)((const uint8_t*)scales + r * stride));
        LLMC_VECTORS {
          float* o = t.out + r * OUT_STRIDE + v * 16;
          f32x16 total = g == 0 ? splat(0.0f) : load(o);
          store(o, fma(to_f32(acc[r][v]), scale, total));
        }
      }
    }
  }
};

}  // namespace llmc
