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

// Smallest of a row; NaN where any value is NaN.
LLMC_INLINE float min_row(const float* x, int n) {
  f32x16 m = splat(__builtin_inff());
  for (int i = 0; i < n; i += 16) m = min(select(first_lanes(n - i), load(x + i, n - i), __builtin_inff()), m);
  return lane_bits(is_nan(m)) ? __builtin_nanf("") : reduce_min(m);
}

// --- masks as values: a bool row is stored as floats 0 and 1
LLMC_INLINE f32x16 from_mask(mask16 m) { return select(m, 1.0f, 0.0f); }
LLMC_INLINE mask16 to_mask(f32x16 x) { return ne(x, 0.0f); }
LLMC_INLINE mask16 mask_of(bool b) { return first_lanes(b ? 16 : 0); }
LLMC_INLINE mask16 mask_not(mask16 a) { return eq(from_mask(a), 0.0f); }
LLMC_INLINE mask16 mask_and(mask16 a, mask16 b) { return to_mask(select(a, from_mask(b), 0.0f)); }
LLMC_INLINE mask16 mask_or(mask16 a, mask16 b) { return to_mask(select(a, 1.0f, from_mask(b))); }
LLMC_INLINE mask16 mask_select(mask16 m, mask16 a, mask16 b) { return to_mask(select(m, from_mask(a), from_mask(b))); }
LLMC_INLINE mask16 mask_eq(mask16 a, mask16 b) { return eq(from_mask(a), from_mask(b)); }
LLMC_INLINE mask16 mask_ne(mask16 a, mask16 b) { return ne(from_mask(a), from_mask(b)); }

// --- pow with the special cases of IEEE 754 (C99 F.9.4.4); in double, rounded once

// log2 of a positive finite double: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
LLMC_INLINE double log2_of(double x) {
  uint64_t u = __builtin_bit_cast(uint64_t, x) - 0x3fe6a09e667f3bcdull;
  int64_t e = (int64_t)u >> 52;
  double m = __builtin_bit_cast(double, (u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  double s = (m - 1.0) / (m + 1.0), z = s * s, p = 1.0 / 19.0;
  for (int odd = 17; odd > 0; odd -= 2) p = p * z + 1.0 / odd;
  return (double)e + 2.8853900817779268 * s * p;
}
// 2^t, t cut to what a float can tell apart from 0 and infinity.
LLMC_INLINE double exp2_of(double t) {
  t = t < -200.0 ? -200.0 : t > 200.0 ? 200.0 : t;
  double n = (t + 6755399441055744.0) - 6755399441055744.0;  // nearest
  double r = (t - n) * 0.69314718055994531, p = 1.0;
  for (int k = 13; k > 0; --k) p = p * r / k + 1.0;
  return p * __builtin_bit_cast(double, (uint64_t)((int64_t)n + 1023) << 52);
}
inline float pow_of(float x, float y) {
  const float a = __builtin_fabsf(x), b = __builtin_fabsf(y), inf = __builtin_inff();
  if (y == 0.0f || x == 1.0f) return 1.0f;
  if (x != x || y != y) return __builtin_nanf("");
  const bool whole = b >= 8388608.0f || b == (float)(int32_t)b;
  const bool odd = b < 16777216.0f && whole && ((int32_t)b & 1);
  if (b == inf) return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? inf : 0.0f;
  float magnitude;
  if (a == 0.0f || a == inf) magnitude = (a == 0.0f) == (y > 0.0f) ? 0.0f : inf;
  else if (x < 0.0f && !whole) return __builtin_nanf("");
  else magnitude = (float)exp2_of((double)y * log2_of((double)a));
  return odd && (float_bits(x) >> 31) ? -magnitude : magnitude;
}
LLMC_INLINE f32x16 pow(f32x16 x, f32x16 y) {
  float a[16], b[16];
  store(a, x);
  store(b, y);
  for (int i = 0; i < 16; ++i) a[i] = pow_of(a[i], b[i]);
  return load(a);
}

}  // namespace llmc
