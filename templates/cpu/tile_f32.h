// The tile of float32: one chain of fma over ascending k (tile.h).
#pragma once
#include "tile.h"

namespace llmc {

template <int R, int P> struct TileKernel<F32, R, P> {
  LLMC_INLINE void run(const Tile& t) {
    const int64_t panel = F32::panel_bytes(t.k) / 4, stride = F32::row_bytes(t.k) / 4;
    const float *w = (const float*)t.weights, *x = (const float*)t.rows;
    f32x16 acc[R][2 * P];
    LLMC_ROWS LLMC_VECTORS acc[r][v] = splat(0.0f);
    for (int64_t k = 0; k < t.k; ++k, w += PANEL, ++x) {
      f32x16 b[2 * P];
      LLMC_VECTORS {
        const float* p = w + (v / 2) * panel + (v % 2) * 16;
        b[v] = load(p);
        prefetch((const char*)p + t.ahead);
      }
      LLMC_ROWS {
        f32x16 a = splat(x[r * stride]);
        LLMC_VECTORS acc[r][v] = fma(b[v], a, acc[r][v]);
      }
    }
    LLMC_ROWS LLMC_VECTORS store(t.out + r * OUT_STRIDE + v * 16, acc[r][v]);
  }
};

}  // namespace llmc
