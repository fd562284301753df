// sin and cos for f32 arguments of any size, computed in double and rounded once: rotary angles reach 1e6, where a
// reduction in f32 would lose every digit.
#pragma once
#include "simd.h"

namespace llmc {

// Bits of 2/pi after the binary point, 32 at a time.
constexpr uint32_t TWO_OVER_PI[] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                    0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561};

struct Reduced {
  double r;           // |r| <= pi / 4
  uint32_t quadrant; // x = r + quadrant * pi / 2, modulo 2 pi
};

// Payne and Hanek for |x| >= 2^25: the 24-bit mantissa times the 128 bits of 2/pi that matter at this exponent. Bits
// above them, and what overflows the product, are whole multiples of four quadrants.
inline Reduced reduce_huge(float x) {
  const uint32_t u = float_bits(x) & 0x7fffffffu;
  const int first = (int)(u >> 23) - 152;  // |x| = mantissa * 2^(first + 2)
  unsigned __int128 window = 0;
  for (int i = 0; i < 4; ++i) {
    const int word = first / 32 + i, shift = first % 32;
    uint64_t pair = (uint64_t)TWO_OVER_PI[word] << 32 | TWO_OVER_PI[word + 1];
    window = window << 32 | (uint32_t)(pair << shift >> 32);
  }
  unsigned __int128 product = window * ((u & 0x7fffffu) | 0x800000u);  // 2 bits of quadrant, 126 of fraction
  int64_t fraction = (int64_t)(uint64_t)(product >> 62);               // signed: the nearest quadrant
  uint32_t quadrant = (uint32_t)(product >> 126) + (fraction < 0);
  double r = (double)fraction * (1.5707963267948966 / 18446744073709551616.0);
  return x < 0 ? Reduced{-r, (0u - quadrant) & 3} : Reduced{r, quadrant & 3};
}

inline Reduced reduce_angle(float x) {
  if (!(__builtin_fabsf(x) < 33554432.0f)) return reduce_huge(x);
  double n = (double)x * 0.6366197723675814;
  n = (n + 6755399441055744.0) - 6755399441055744.0;  // nearest even
  double r = (double)x - n * 1.570796325802803;   // the first 27 bits of pi/2: the product is exact
  return {r - n * 9.920935796805404e-10, (uint32_t)(int64_t)n & 3};
}

LLMC_INLINE double sin_poly(double r) {
  double z = r * r;
  double p = -2.5052108385441720e-8 + z * 1.6059043836821613e-10;
  p = 2.7557319223985893e-6 + z * p;
  p = -1.9841269841269841e-4 + z * p;
  p = 8.3333333333333333e-3 + z * p;
  p = -1.6666666666666667e-1 + z * p;
  return r + r * z * p;
}
LLMC_INLINE double cos_poly(double r) {
  double z = r * r;
  double p = 2.0876756987868099e-9 - z * 1.1470745597729725e-11;
  p = -2.7557319223985888e-7 + z * p;
  p = 2.4801587301587302e-5 + z * p;
  p = -1.3888888888888889e-3 + z * p;
  p = 4.1666666666666667e-2 + z * p;
  return 1.0 - 0.5 * z + z * z * p;
}

inline void sin_cos(float x, float* sine, float* cosine) {
  if (!(__builtin_fabsf(x) <= 3.4028235e38f)) {
    *sine = *cosine = __builtin_nanf("");
    return;
  }
  Reduced a = reduce_angle(x);
  double s = sin_poly(a.r), c = cos_poly(a.r);
  double y = a.quadrant & 1 ? c : s, z = a.quadrant & 1 ? s : c;
  *sine = (float)(a.quadrant & 2 ? -y : y);
  *cosine = (float)((a.quadrant + 1) & 2 ? -z : z);
}

LLMC_INLINE f32x16 sin(f32x16 x) {
  float a[16], s, c;
  store(a, x);
  for (int i = 0; i < 16; ++i) { sin_cos(a[i], &s, &c); a[i] = s; }
  return load(a);
}
LLMC_INLINE f32x16 cos(f32x16 x) {
  float a[16], s, c;
  store(a, x);
  for (int i = 0; i < 16; ++i) { sin_cos(a[i], &s, &c); a[i] = c; }
  return load(a);
}

}  // namespace llmc
