// Native parts of simd.h in portable C (GCC and Clang vector extensions): four vectors of four lanes make a f32x16.
// There is no fused multiply-add to rely on: part_fma rounds the product, then the sum.
#pragma once
#include <stdint.h>

namespace llmc {

constexpr int PART_LANES = 4;
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));  // all ones where true
typedef uint32_t vu __attribute__((vector_size(16)));

#define LLMC_LANES for (int i = 0; i < PART_LANES; ++i)

LLMC_INLINE vf part_set(float x) { return vf{x, x, x, x}; }
LLMC_INLINE vi part_set_i32(int32_t x) { return vi{x, x, x, x}; }
LLMC_INLINE vf part_load(const float* a) { vf r; __builtin_memcpy(&r, a, 16); return r; }
LLMC_INLINE vi part_load_i32(const int32_t* a) { vi r; __builtin_memcpy(&r, a, 16); return r; }
LLMC_INLINE void part_store(float* a, vf x) { __builtin_memcpy(a, &x, 16); }
LLMC_INLINE void part_store_i32(int32_t* a, vi x) { __builtin_memcpy(a, &x, 16); }
LLMC_INLINE vf part_load_n(const float* a, int n) { vf r = {}; LLMC_LANES if (i < n) r[i] = a[i]; return r; }
LLMC_INLINE void part_store_n(float* a, vf x, int n) { LLMC_LANES if (i < n) a[i] = x[i]; }
LLMC_INLINE vi part_iota(int base) { return vi{base, base + 1, base + 2, base + 3}; }

LLMC_INLINE vf part_fma(vf a, vf b, vf c) { return a * b + c; }
LLMC_INLINE vi part_add_i32(vi a, vi b) { return (vi)((vu)a + (vu)b); }
LLMC_INLINE vi part_sub_i32(vi a, vi b) { return (vi)((vu)a - (vu)b); }
LLMC_INLINE vi part_and_i32(vi a, vi b) { return a & b; }
LLMC_INLINE vi part_or_i32(vi a, vi b) { return a | b; }
LLMC_INLINE vi part_xor_i32(vi a, vi b) { return a ^ b; }
LLMC_INLINE vi part_multiply_u32(vi a, uint32_t b, vi* high) {
  vi low;
  LLMC_LANES {
    const uint64_t product = (uint64_t)(uint32_t)a[i] * b;
    low[i] = (int32_t)(uint32_t)product;
    (*high)[i] = (int32_t)(product >> 32);
  }
  return low;
}
template <int N> LLMC_INLINE vi part_shl(vi a) { return (vi)((vu)a << N); }
template <int N> LLMC_INLINE vi part_shr(vi a) { return a >> N; }
LLMC_INLINE vi part_bits(vf a) { return (vi)a; }
LLMC_INLINE vf part_from_bits(vi a) { return (vf)a; }
LLMC_INLINE vf part_to_f32(vi a) { return __builtin_convertvector(a, vf); }

LLMC_INLINE vm part_lt(vf a, vf b) { return a < b; }
LLMC_INLINE vm part_le(vf a, vf b) { return a <= b; }
LLMC_INLINE vm part_gt(vf a, vf b) { return a > b; }
LLMC_INLINE vm part_ge(vf a, vf b) { return a >= b; }
LLMC_INLINE vm part_eq(vf a, vf b) { return a == b; }
LLMC_INLINE vm part_ne(vf a, vf b) { return a != b; }
LLMC_INLINE vm part_lt_i32(vi a, vi b) { return a < b; }
LLMC_INLINE vf part_select(vm m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
LLMC_INLINE uint32_t part_lane_bits(vm m) { uint32_t r = 0; LLMC_LANES r |= (uint32_t)(m[i] & 1) << i; return r; }

LLMC_INLINE vf part_max(vf a, vf b) { return part_select(a > b, a, b); }
LLMC_INLINE vf part_min(vf a, vf b) { return part_select(a < b, a, b); }
LLMC_INLINE vf part_sqrt(vf a) { LLMC_LANES a[i] = __builtin_sqrtf(a[i]); return a; }
// Adding and taking away 2^23 rounds the magnitude to nearest even; larger ones are whole already.
LLMC_INLINE vf part_round(vf a) {
  const vi sign = (vi)a & part_set_i32((int32_t)0x80000000u);
  const vf whole = part_set(8388608.0f), magnitude = (vf)((vi)a & part_set_i32(0x7fffffff));
  vf r = (magnitude + whole) - whole;
  return part_select(magnitude < whole, (vf)((vi)r | sign), a);
}
// Nearest even; out of range or NaN gives INT32_MIN like the hardware does.
LLMC_INLINE vi part_to_i32(vf a) {
  vf r = part_round(a);
  vm ok = (r >= part_set(-2147483648.0f)) & (r < part_set(2147483648.0f));
  vi n = __builtin_convertvector(part_select(ok, r, part_set(0.0f)), vi);
  return (n & ok) | (part_set_i32(INT32_MIN) & ~ok);
}

LLMC_INLINE float part_reduce_add(const vf* v) {
  vf s = (v[0] + v[2]) + (v[1] + v[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
LLMC_INLINE float part_reduce_max(const vf* v) {
  vf s = part_max(part_max(v[0], v[2]), part_max(v[1], v[3]));
  float a = s[0] > s[2] ? s[0] : s[2], b = s[1] > s[3] ? s[1] : s[3];
  return a > b ? a : b;
}

LLMC_INLINE void part_store_bf16(uint16_t* a, vf x) {
  vu u = (vu)x;
  vu rounded = (u + ((u >> 16) & 1u) + 0x7fffu) >> 16, quiet = (u >> 16) | 0x40u;
  vm nan = x != x;
  vu r = (rounded & (vu)~nan) | (quiet & (vu)nan);
  LLMC_LANES a[i] = (uint16_t)r[i];
}
LLMC_INLINE vf part_load_bf16(const uint16_t* a) {
  vu u; LLMC_LANES u[i] = (uint32_t)a[i] << 16; return (vf)u;
}
LLMC_INLINE void part_store_s8(int8_t* a, vi x) {
  LLMC_LANES a[i] = (int8_t)(x[i] < -128 ? -128 : x[i] > 127 ? 127 : x[i]);
}
LLMC_INLINE vi part_dot_i8(vi acc, vi u, vi s) {
  for (int b = 0; b < 4; ++b) {
    vi ub = (vi)(((vu)u >> (8 * b)) & 0xffu), sb = (vi)((vu)s << (24 - 8 * b)) >> 24;
    acc += ub * sb;
  }
  return acc;
}

// --- what low-bit weights are made of (codes.h)
LLMC_INLINE float part_from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  float x;
  if (exponent == 0) x = (float)(int32_t)fraction * 0x1p-24f;
  else x = bits_float((exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
  return bits_float(float_bits(x) | sign);
}
LLMC_INLINE vf part_load_f16(const uint16_t* a) { vf r; LLMC_LANES r[i] = part_from_f16(a[i]); return r; }
LLMC_INLINE vi part_load_s8(const int8_t* a) { vi r; LLMC_LANES r[i] = a[i]; return r; }
typedef uint8_t vb __attribute__((vector_size(16)));
LLMC_INLINE vi part_table(const uint8_t* a) { return part_load_i32((const int32_t*)a); }
LLMC_INLINE vi part_look_up(vi table, vi index) {
  vb r;
  for (int i = 0; i < 16; ++i) r[i] = ((vb)table)[((vb)index)[i] & 15];
  return (vi)r;
}
LLMC_INLINE int32_t part_sum_s8(const int8_t* a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += a[i];
  return sum;
}

}  // namespace llmc
