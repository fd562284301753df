// math.cuh - the elementary functions of generated expressions, one f32 at a time: exact steps of IEEE arithmetic and
// explicit fused multiply-adds, so that the GPU and its twin give the same bits, and a bound measured on the CPU
// (tests/cuda/kernels/test_expression.py) is the GPU's. No table, no local array, no approximate unit. Compiled without
// contraction (--fmad=false); denormals are kept, an infinity or NaN comes out where IEEE 754 and C99 have one.
// numerics  largest error in ulp: exp, log, erf 1.5, tanh, x^3 2, sin, cos, pow 0.51 (through double), rsqrt 1.5; divisions
//           and square roots are IEEE's. sigmoid, silu, gelu and softplus are a few roundings of their formulas.
#pragma once
#include "device.cuh"

LLMC_DEVICE float nan_f32() { return bits_float(0x7fffffffu); }
LLMC_DEVICE float inf_f32() { return bits_float(0x7f800000u); }
// A NaN of either wins, as in numpy.
LLMC_DEVICE float max_f32(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
LLMC_DEVICE float min_f32(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
LLMC_DEVICE float neg_f32(float x) { return bits_float(float_bits(x) ^ 0x80000000u); }
LLMC_DEVICE float abs_f32(float x) { return bits_float(float_bits(x) & 0x7fffffffu); }
LLMC_DEVICE float with_sign_of(float magnitude, float sign) {
  return bits_float((float_bits(magnitude) & 0x7fffffffu) | (float_bits(sign) & 0x80000000u));
}
LLMC_DEVICE float sqrt_f32(float x) { return sqrtf(x); }
LLMC_DEVICE float rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
LLMC_DEVICE float reciprocal_f32(float x) { return 1.0f / x; }
LLMC_DEVICE float relu_f32(float x) { return max_f32(x, 0.0f); }
LLMC_DEVICE float square_f32(float x) { return x * x; }
LLMC_DEVICE float cube_f32(float x) { return x * x * x; }

// x * 2^n for n in -252..254, in two exact steps so that results reach the denormals and infinity.
LLMC_DEVICE float scale_by_power(float x, int n) {
  const int half = n >> 1, rest = n - half;
  return x * bits_float(u32(half + 127) << 23) * bits_float(u32(rest + 127) << 23);
}

// x = n ln 2 + r, |r| <= ln 2 / 2, polynomial of degree 7.
LLMC_DEVICE float exp_f32(float x) {
  const float c = x > -104.0f ? x < 89.0f ? x : 89.0f : -104.0f;
  const float n = rintf(c * 1.44269504f);
  float r = fmaf(n, -0.693145752f, c);
  r = fmaf(n, -1.42860677e-6f, r);
  float p = fmaf(r, 1.98412698e-4f, 1.38888889e-3f);
  p = fmaf(p, r, 8.33333333e-3f);
  p = fmaf(p, r, 4.16666667e-2f);
  p = fmaf(p, r, 1.66666667e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p * r, r, r) + 1.0f;
  const float y = scale_by_power(p, int(n));
  return x != x ? x : y;
}

// x = m 2^e with m in [sqrt(1/2), sqrt(2)), f = m - 1: log m = 2 atanh(f / (2 + f)).
LLMC_DEVICE float log_f32(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const u32 u = float_bits(tiny ? x * 8388608.0f : x);
  const int e = int(u - 0x3f3504f3u) >> 23;
  const float m = bits_float(u - (u32(e) << 23)), exponent = float(e) - (tiny ? 23.0f : 0.0f);
  const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  float p = fmaf(z, 0.24279079f, 0.28498787f);
  p = fmaf(p, z, 0.40000972f);
  p = fmaf(p, z, 0.66666663f);
  const float half = 0.5f * f * f, small = s * fmaf(z, p, half);  // log(1 + f) = f - (half - s (half + z p))
  float y = fmaf(exponent, 1.42860677e-6f, small) - half;
  y = fmaf(exponent, 0.693145752f, f + y);
  y = x == 0.0f ? -inf_f32() : y;
  y = x < 0.0f ? nan_f32() : y;
  return x == inf_f32() || x != x ? x : y;
}

// Odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1).
LLMC_DEVICE float tanh_f32(float x) {
  const float a = abs_f32(x), z = x * x;
  float p = fmaf(z, -5.70498872745e-3f, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  const float small = fmaf(p * z, x, x), large = 1.0f - 2.0f / (exp_f32(a + a) + 1.0f);
  return x != x ? x : with_sign_of(a < 0.625f ? small : large, x);
}

// N. Juffa's two intervals: odd polynomial below 0.9277, else 1 - exp(q(|x|)).
LLMC_DEVICE float erf_f32(float x) {
  const float t = abs_f32(x), s = x * x;
  float r = fmaf(t, -1.72853470e-5f, 3.83197126e-4f);
  const float u = fmaf(t, -3.88396438e-3f, 2.42546219e-2f);
  r = fmaf(r, s, u);
  r = fmaf(r, t, -1.06777877e-1f);
  r = fmaf(r, t, -6.34846687e-1f);
  r = fmaf(r, t, -1.28717512e-1f);
  r = fmaf(r, t, -t);
  const float large = t > 10.0f ? 1.0f : 1.0f - exp_f32(r);
  float p = fmaf(s, -5.96761703e-4f, 4.99119423e-3f);
  p = fmaf(p, s, -2.67681349e-2f);
  p = fmaf(p, s, 1.12819925e-1f);
  p = fmaf(p, s, -3.76125336e-1f);
  p = fmaf(p, s, 1.28379166e-1f);
  return x != x ? x : t > 0.927734375f ? with_sign_of(large, x) : fmaf(p, x, x);
}

LLMC_DEVICE float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
LLMC_DEVICE float silu_f32(float x) { return x * sigmoid_f32(x); }
LLMC_DEVICE float gelu_f32(float x) { return x * 0.5f * (1.0f + erf_f32(x * 0.70710678f)); }
LLMC_DEVICE float gelu_tanh_f32(float x) {
  return 0.5f * x * (1.0f + tanh_f32(0.79788456f * (x + 0.044715f * (x * x * x))));
}
// log(1 + exp(x)); x itself above 20, as torch.
LLMC_DEVICE float softplus_f32(float x) {
  const float e = exp_f32(-abs_f32(x)), u = 1.0f + e;
  const float log1p = u == 1.0f ? e : log_f32(u) * e / (u - 1.0f);
  return x > 20.0f ? x : max_f32(x, 0.0f) + log1p;
}

// --- sin and cos: reduced and evaluated in double, rounded once, because rotary angles reach 1e6 and more, where f32
// has no digit left. Few elements ask for them (half a head per token and step), so double's rate does not matter.
struct Reduced {
  double r;      // |r| <= pi / 4
  u32 quadrant;  // x = r + quadrant * pi / 2, modulo 2 pi
};

// 32 bits of 2/pi after the binary point, from bit 32 i on, i < 8.
LLMC_DEVICE u64 two_over_pi(int i) {
  const u32 even = i < 4 ? i < 2 ? 0xa2f9836eu : 0xfc2757d1u : i < 6 ? 0xdb629599u : 0xfe5163abu;
  const u32 odd = i < 4 ? i < 2 ? 0x4e441529u : 0xf534ddc0u : i < 6 ? 0x3c439041u : 0xdebbc561u;
  return i & 1 ? odd : even;
}
// Payne and Hanek for |x| >= 2^25: the 24-bit mantissa times the 128 bits of 2/pi that matter at this exponent. Bits
// above them, and what overflows the product, are whole multiples of four quadrants.
LLMC_DEVICE Reduced reduce_huge(float x) {
  const u32 u = float_bits(x) & 0x7fffffffu;
  const int first = int(u >> 23) - 152, word = first >> 5, shift = first & 31;  // |x| = mantissa * 2^(first + 2)
  u64 half[2];
  LLMC_UNROLL
  for (int i = 0; i < 2; i++) {
    const u64 a = two_over_pi(word + 2 * i), b = two_over_pi(word + 2 * i + 1), c = two_over_pi(word + 2 * i + 2);
    half[i] = (a << 32 | b) << shift | (c << shift) >> 32;
  }
  const u64 mantissa = (u & 0x7fffffu) | 0x800000u;
  const u64 low = (half[1] & 0xffffffffu) * mantissa, middle = (half[1] >> 32) * mantissa + (low >> 32);
  const u64 high = half[0] * mantissa + (middle >> 32), below = middle << 32 | (low & 0xffffffffu);
  const u64 bits = high << 2 | below >> 62;  // 2 bits of quadrant lie above them, signed: the nearest quadrant
  const bool up = bits >> 63;
  const double fraction = up ? -double(~bits + 1) : double(bits);
  const u32 quadrant = u32(high >> 62) + up;
  const double r = fraction * (1.5707963267948966 / 18446744073709551616.0);
  return x < 0.0f ? Reduced{-r, (0u - quadrant) & 3} : Reduced{r, quadrant & 3};
}
LLMC_DEVICE Reduced reduce_angle(float x) {
  if (!(abs_f32(x) < 33554432.0f)) return reduce_huge(x);
  double n = double(x) * 0.6366197723675814;
  n = (n + 6755399441055744.0) - 6755399441055744.0;  // nearest even
  const double r = double(x) - n * 1.570796325802803;  // the first 27 bits of pi/2: the product is exact
  return {r - n * 9.920935796805404e-10, u32(int(n)) & 3};
}
LLMC_DEVICE double sin_poly(double r) {
  const double z = r * r;
  double p = -2.5052108385441720e-8 + z * 1.6059043836821613e-10;
  p = 2.7557319223985893e-6 + z * p;
  p = -1.9841269841269841e-4 + z * p;
  p = 8.3333333333333333e-3 + z * p;
  p = -1.6666666666666667e-1 + z * p;
  return r + r * z * p;
}
LLMC_DEVICE double cos_poly(double r) {
  const double z = r * r;
  double p = 2.0876756987868099e-9 - z * 1.1470745597729725e-11;
  p = -2.7557319223985888e-7 + z * p;
  p = 2.4801587301587302e-5 + z * p;
  p = -1.3888888888888889e-3 + z * p;
  p = 4.1666666666666667e-2 + z * p;
  return 1.0 - 0.5 * z + z * z * p;
}
// sin for add = 0, cos for add = 1 quadrant.
LLMC_DEVICE float sin_turned(float x, u32 add) {
  if (!(abs_f32(x) <= 3.4028235e38f)) return nan_f32();
  const Reduced a = reduce_angle(x);
  const u32 quadrant = a.quadrant + add;
  const double y = quadrant & 1 ? cos_poly(a.r) : sin_poly(a.r);
  return float(quadrant & 2 ? -y : y);
}
LLMC_DEVICE float sin_f32(float x) { return sin_turned(x, 0); }
LLMC_DEVICE float cos_f32(float x) { return sin_turned(x, 1); }

// --- pow with the special cases of IEEE 754 (C99 F.9.4.4); in double, rounded once
// log2 of a positive finite double: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
LLMC_DEVICE double log2_of(double x) {
  const u64 u = double_bits(x) - 0x3fe6a09e667f3bcdull;
  const int e = int(u >> 32) >> 20;
  const double m = bits_double((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 19.0;
  LLMC_UNROLL
  for (int odd = 17; odd > 0; odd -= 2) p = p * z + 1.0 / odd;
  return double(e) + 2.8853900817779268 * s * p;
}
// 2^t, t cut to what a float can tell apart from 0 and infinity.
LLMC_DEVICE double exp2_of(double t) {
  t = t < -200.0 ? -200.0 : t > 200.0 ? 200.0 : t;
  const double n = (t + 6755399441055744.0) - 6755399441055744.0;  // nearest
  const double r = (t - n) * 0.69314718055994531;
  double p = 1.0;
  LLMC_UNROLL
  for (int k = 13; k > 0; k--) p = p * (r * (1.0 / k)) + 1.0;
  return p * bits_double(u64(int(n) + 1023) << 52);
}
LLMC_DEVICE float pow_f32(float x, float y) {
  const float a = abs_f32(x), b = abs_f32(y);
  if (y == 0.0f || x == 1.0f) return 1.0f;
  if (x != x || y != y) return nan_f32();
  if (b == inf_f32()) return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? inf_f32() : 0.0f;
  const int truncated = b < 16777216.0f ? int(b) : 0;
  const bool whole = b >= 8388608.0f || b == float(truncated), odd = whole && (truncated & 1);
  float magnitude;
  if (a == 0.0f || a == inf_f32()) magnitude = (a == 0.0f) == (y > 0.0f) ? 0.0f : inf_f32();
  else if (x < 0.0f && !whole) return nan_f32();
  else magnitude = float(exp2_of(double(y) * log2_of(double(a))));
  return odd && float_bits(x) >> 31 ? -magnitude : magnitude;
}
