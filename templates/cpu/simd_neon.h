// Native parts of simd.h on AArch64 Advanced SIMD: four vectors of four lanes make a f32x16.
#pragma once
#include <arm_neon.h>
#include <stdint.h>

namespace llmc {

constexpr int PART_LANES = 4;
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;  // all ones where true

#define LLMC_LANES for (int i = 0; i < PART_LANES; ++i)

LLMC_INLINE vf part_set(float x) { return vdupq_n_f32(x); }
LLMC_INLINE vi part_set_i32(int32_t x) { return vdupq_n_s32(x); }
LLMC_INLINE vf part_load(const float* a) { return vld1q_f32(a); }
LLMC_INLINE vi part_load_i32(const int32_t* a) { return vreinterpretq_s32_u8(vld1q_u8((const uint8_t*)a)); }
LLMC_INLINE void part_store(float* a, vf x) { vst1q_f32(a, x); }
LLMC_INLINE void part_store_i32(int32_t* a, vi x) { vst1q_u8((uint8_t*)a, vreinterpretq_u8_s32(x)); }
LLMC_INLINE vf part_load_n(const float* a, int n) {
  if (n >= PART_LANES) return part_load(a);
  vf r = part_set(0.0f);
  LLMC_LANES if (i < n) r[i] = a[i];
  return r;
}
LLMC_INLINE void part_store_n(float* a, vf x, int n) {
  if (n >= PART_LANES) return part_store(a, x);
  LLMC_LANES if (i < n) a[i] = x[i];
}
LLMC_INLINE vi part_iota(int base) { return vi{base, base + 1, base + 2, base + 3}; }

LLMC_INLINE vf part_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
LLMC_INLINE vi part_add_i32(vi a, vi b) { return vaddq_s32(a, b); }
LLMC_INLINE vi part_sub_i32(vi a, vi b) { return vsubq_s32(a, b); }
LLMC_INLINE vi part_and_i32(vi a, vi b) { return vandq_s32(a, b); }
LLMC_INLINE vi part_or_i32(vi a, vi b) { return vorrq_s32(a, b); }
LLMC_INLINE vi part_xor_i32(vi a, vi b) { return veorq_s32(a, b); }
LLMC_INLINE vi part_multiply_u32(vi a, uint32_t b, vi* high) {
  const uint32x2_t factor = vdup_n_u32(b);
  const uint32x4_t u = vreinterpretq_u32_s32(a);
  const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(u), factor));
  const uint32x4_t second = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(u), factor));
  *high = vreinterpretq_s32_u32(vuzp2q_u32(first, second));
  return vreinterpretq_s32_u32(vuzp1q_u32(first, second));
}
template <int N> LLMC_INLINE vi part_shl(vi a) { return vshlq_n_s32(a, N); }
template <int N> LLMC_INLINE vi part_shr(vi a) {
  if constexpr (N == 0) return a;
  else return vshrq_n_s32(a, N);
}
LLMC_INLINE vi part_bits(vf a) { return vreinterpretq_s32_f32(a); }
LLMC_INLINE vf part_from_bits(vi a) { return vreinterpretq_f32_s32(a); }
LLMC_INLINE vf part_to_f32(vi a) { return vcvtq_f32_s32(a); }

LLMC_INLINE vm part_lt(vf a, vf b) { return vcltq_f32(a, b); }
LLMC_INLINE vm part_le(vf a, vf b) { return vcleq_f32(a, b); }
LLMC_INLINE vm part_gt(vf a, vf b) { return vcgtq_f32(a, b); }
LLMC_INLINE vm part_ge(vf a, vf b) { return vcgeq_f32(a, b); }
LLMC_INLINE vm part_eq(vf a, vf b) { return vceqq_f32(a, b); }
LLMC_INLINE vm part_ne(vf a, vf b) { return vmvnq_u32(vceqq_f32(a, b)); }
LLMC_INLINE vm part_lt_i32(vi a, vi b) { return vcltq_s32(a, b); }
LLMC_INLINE vf part_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
LLMC_INLINE uint32_t part_lane_bits(vm m) { return vaddvq_u32(vandq_u32(m, uint32x4_t{1, 2, 4, 8})); }

// fmax would give a NaN where either is one; x86 gives the second operand.
LLMC_INLINE vf part_max(vf a, vf b) { return part_select(part_gt(a, b), a, b); }
LLMC_INLINE vf part_min(vf a, vf b) { return part_select(part_lt(a, b), a, b); }
LLMC_INLINE vf part_sqrt(vf a) { return vsqrtq_f32(a); }
LLMC_INLINE vf part_round(vf a) { return vrndnq_f32(a); }
// Nearest even; out of range or NaN gives INT32_MIN, as on x86, where the instruction here saturates.
LLMC_INLINE vi part_to_i32(vf a) {
  const vf r = vrndnq_f32(a);
  const vm ok = vandq_u32(part_ge(r, part_set(-2147483648.0f)), part_lt(r, part_set(2147483648.0f)));
  return vbslq_s32(ok, vcvtq_s32_f32(r), part_set_i32(INT32_MIN));
}

LLMC_INLINE float part_reduce_add(const vf* v) {
  const vf s = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
  return (s[0] + s[2]) + (s[1] + s[3]);
}
LLMC_INLINE float part_reduce_max(const vf* v) {
  const vf s = part_max(part_max(v[0], v[2]), part_max(v[1], v[3]));
  const float a = s[0] > s[2] ? s[0] : s[2], b = s[1] > s[3] ? s[1] : s[3];
  return a > b ? a : b;
}

LLMC_INLINE void part_store_bf16(uint16_t* a, vf x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x), one = vdupq_n_u32(1);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), one);
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, odd), vdupq_n_u32(0x7fff));
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  vst1_u16(a, vshrn_n_u32(vbslq_u32(part_ne(x, x), quiet, rounded), 16));
}
LLMC_INLINE vf part_load_bf16(const uint16_t* a) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(a), 16)); }
LLMC_INLINE void part_store_s8(int8_t* a, vi x) {
  const int16x4_t half = vqmovn_s32(x);
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(half, half));
  __builtin_memcpy(a, &bytes, 4);
}
LLMC_INLINE vi part_dot_i8(vi acc, vi u, vi s) {
#if defined(LLMC_I8MM)
  return vusdotq_s32(acc, vreinterpretq_u8_s32(u), vreinterpretq_s8_s32(s));
#elif defined(LLMC_DOTPROD)
  // Both operands are signed: what u is less by is added as so many times the sum of s.
  const int8x16_t bytes = vreinterpretq_s8_s32(s);
  const int8x16_t lowered = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(u), vdupq_n_u8(0x80)));
  acc = vdotq_s32(acc, lowered, bytes);
  acc = vdotq_s32(acc, vdupq_n_s8(64), bytes);
  return vdotq_s32(acc, vdupq_n_s8(64), bytes);
#else
  // Sixteen products of 16 bits fit nowhere but in 32: even and odd bytes widened by turns.
  const int16x8_t even_u = vreinterpretq_s16_u16(vandq_u16(vreinterpretq_u16_s32(u), vdupq_n_u16(0xff)));
  const int16x8_t odd_u = vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s32(u), 8));
  const int16x8_t even_s = vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(s), 8), 8);
  const int16x8_t odd_s = vshrq_n_s16(vreinterpretq_s16_s32(s), 8);
  const int32x4_t low = vmlal_s16(vmull_s16(vget_low_s16(even_u), vget_low_s16(even_s)), vget_low_s16(odd_u),
                                  vget_low_s16(odd_s));
  const int32x4_t high = vmlal_s16(vmull_s16(vget_high_s16(even_u), vget_high_s16(even_s)), vget_high_s16(odd_u),
                                   vget_high_s16(odd_s));
  return vaddq_s32(acc, vpaddq_s32(low, high));
#endif
}

// --- what low-bit weights are made of (codes.h)
LLMC_INLINE vf part_load_f16(const uint16_t* a) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a))); }
LLMC_INLINE vi part_load_s8(const int8_t* a) {
  int8x8_t bytes = vdup_n_s8(0);
  __builtin_memcpy(&bytes, a, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
LLMC_INLINE vi part_table(const uint8_t* a) { return vreinterpretq_s32_u8(vld1q_u8(a)); }
LLMC_INLINE vi part_look_up(vi table, vi index) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(index)));
}
LLMC_INLINE int32_t part_sum_s8(const int8_t* a) { return vaddlvq_s8(vld1q_s8(a)); }
#undef LLMC_LANES

}  // namespace llmc
