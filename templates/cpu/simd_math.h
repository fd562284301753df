// Elementary functions on f32x16, each within a few ulp of f32 over the whole range, ±inf and NaN included
// (tests/kernels/test_simd.py measures the worst case). Names are those of the IR's scalar expressions.
#pragma once
#include "simd.h"

namespace llmc {

// x * 2^n for n in -252..254, in two exact steps so that results reach the denormals and infinity.
LLMC_INLINE f32x16 scale_by_power(f32x16 x, i32x16 n) {
  i32x16 half = shift_right<1>(n);
  i32x16 rest = sub_i32(n, half);
  x = x * from_bits(shift_left<23>(add_i32(half, splat_i32(127))));
  return x * from_bits(shift_left<23>(add_i32(rest, splat_i32(127))));
}

// exp: x = n ln 2 + r, |r| <= ln 2 / 2, degree-7 polynomial.
LLMC_INLINE f32x16 exp(f32x16 x) {
  f32x16 c = min_raw(max_raw(x, splat(-104.0f)), splat(89.0f));
  f32x16 n = round(c * 1.44269504f);
  f32x16 r = fma(n, -0.693145752f, c);
  r = fma(n, -1.42860677e-6f, r);
  f32x16 p = fma(r, 1.98412698e-4f, 1.38888889e-3f);
  p = fma(p, r, 8.33333333e-3f);
  p = fma(p, r, 4.16666667e-2f);
  p = fma(p, r, 1.66666667e-1f);
  p = fma(p, r, 0.5f);
  p = fma(p * r, r, r) + 1.0f;
  f32x16 y = scale_by_power(p, to_i32(n));
  return select(is_nan(x), x, y);
}

// log: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
LLMC_INLINE f32x16 log(f32x16 x) {
  mask16 tiny = lt(x, 1.17549435e-38f);
  i32x16 u = bits(select(tiny, x * 8388608.0f, x));
  i32x16 e = shift_right<23>(sub_i32(u, splat_i32(0x3f3504f3)));
  f32x16 m = from_bits(sub_i32(u, shift_left<23>(e)));
  f32x16 exponent = to_f32(e) - select(tiny, 23.0f, splat(0.0f));
  f32x16 f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  f32x16 p = fma(z, 0.24279079f, 0.28498787f);
  p = fma(p, z, 0.40000972f);
  p = fma(p, z, 0.66666663f);
  f32x16 half = 0.5f * f * f;
  // log(1 + f) = f - (half - s (half + z p))
  f32x16 small = s * fma(z, p, half);
  f32x16 y = fma(exponent, 1.42860677e-6f, small) - half;
  y = fma(exponent, 0.693145752f, f + y);
  y = select(eq(x, 0.0f), -__builtin_inff(), y);
  y = select(lt(x, 0.0f), __builtin_nanf(""), y);
  return select(eq(x, __builtin_inff()), x, select(is_nan(x), x, y));
}

// tanh: odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1).
LLMC_INLINE f32x16 tanh(f32x16 x) {
  f32x16 a = abs(x), z = x * x;
  f32x16 p = fma(z, -5.70498872745e-3f, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  f32x16 small = fma(p * z, x, x);
  f32x16 large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return select(is_nan(x), x, copysign(select(lt(a, 0.625f), small, large), x));
}

// erf (N. Juffa's two-interval fit): odd polynomial below 0.9277, else 1 - exp(q(|x|)).
LLMC_INLINE f32x16 erf(f32x16 x) {
  f32x16 t = abs(x), s = x * x;
  f32x16 r = fma(t, -1.72853470e-5f, 3.83197126e-4f);
  f32x16 u = fma(t, -3.88396438e-3f, 2.42546219e-2f);
  r = fma(r, s, u);
  r = fma(r, t, -1.06777877e-1f);
  r = fma(r, t, -6.34846687e-1f);
  r = fma(r, t, -1.28717512e-1f);
  r = fma(r, t, neg(t));
  f32x16 large = select(gt(t, 10.0f), 1.0f, 1.0f - exp(r));
  f32x16 p = fma(s, -5.96761703e-4f, 4.99119423e-3f);
  p = fma(p, s, -2.67681349e-2f);
  p = fma(p, s, 1.12819925e-1f);
  p = fma(p, s, -3.76125336e-1f);
  p = fma(p, s, 1.28379166e-1f);
  f32x16 small = fma(p, x, x);
  return select(is_nan(x), x, select(gt(t, 0.927734375f), copysign(large, x), small));
}

LLMC_INLINE f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(neg(x))); }
LLMC_INLINE f32x16 silu(f32x16 x) { return x * sigmoid(x); }
LLMC_INLINE f32x16 relu(f32x16 x) { return max(x, 0.0f); }
LLMC_INLINE f32x16 gelu_erf(f32x16 x) { return x * 0.5f * (1.0f + erf(x * 0.70710678f)); }
LLMC_INLINE f32x16 gelu_tanh(f32x16 x) {
  return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * (x * x * x))));
}
// log(1 + exp(x)); x itself above 20, as torch.
LLMC_INLINE f32x16 softplus(f32x16 x) {
  f32x16 e = exp(neg(abs(x))), u = 1.0f + e;
  f32x16 log1p = select(eq(u, 1.0f), e, log(u) * e / (u - 1.0f));
  return select(gt(x, 20.0f), x, max(x, 0.0f) + log1p);
}
LLMC_INLINE f32x16 floor(f32x16 x) {
  f32x16 r = round(x);
  return select(gt(r, x), r - 1.0f, r);
}
LLMC_INLINE f32x16 ceil(f32x16 x) { return neg(floor(neg(x))); }
LLMC_INLINE f32x16 trunc(f32x16 x) { return copysign(floor(abs(x)), x); }

}  // namespace llmc
