// Rows whose elements do not lie side by side, and pointwise functions that only generic graphs need.
#pragma once
#include "simd_math.h"

namespace llmc {

LLMC_INLINE f32x16 load_strided(const float* x, int64_t stride, int n) {
  float v[16] = {};
  for (int i = 0; i < n && i < 16; ++i) v[i] = x[i * stride];
  return load(v);
}
LLMC_INLINE void store_strided(float* y, int64_t stride, f32x16 x, int n) {
  float v[16];
  store(v, x);
  for (int i = 0; i < n && i < 16; ++i) y[i * stride] = v[i];
}

// out = row `index` of a bf16 table with rows of n.
LLMC_INLINE void gather_row_bf16(const uint16_t* table, int64_t index, float* out, int n) {
  const uint16_t* row = table + index * n;
  for (int i = 0; i < n; ++i) out[i] = from_bf16(row[i]);
}

}  // namespace llmc
