// Native parts of simd.h on AVX-512: one zmm is a whole f32x16.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace llmc {

constexpr int PART_LANES = 16;
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

LLMC_INLINE __mmask16 tail_mask(int n) { return n >= 16 ? (__mmask16)0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

LLMC_INLINE vf part_set(float x) { return _mm512_set1_ps(x); }
LLMC_INLINE vi part_set_i32(int32_t x) { return _mm512_set1_epi32(x); }
LLMC_INLINE vf part_load(const float* a) { return _mm512_loadu_ps(a); }
LLMC_INLINE vi part_load_i32(const int32_t* a) { return _mm512_loadu_si512(a); }
LLMC_INLINE void part_store(float* a, vf x) { _mm512_storeu_ps(a, x); }
LLMC_INLINE void part_store_i32(int32_t* a, vi x) { _mm512_storeu_si512(a, x); }
LLMC_INLINE vf part_load_n(const float* a, int n) { return _mm512_maskz_loadu_ps(tail_mask(n), a); }
LLMC_INLINE void part_store_n(float* a, vf x, int n) { _mm512_mask_storeu_ps(a, tail_mask(n), x); }
LLMC_INLINE vi part_iota(int base) {
  return _mm512_add_epi32(_mm512_set1_epi32(base),
                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

LLMC_INLINE vf part_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LLMC_INLINE vi part_add_i32(vi a, vi b) { return _mm512_add_epi32(a, b); }
LLMC_INLINE vi part_sub_i32(vi a, vi b) { return _mm512_sub_epi32(a, b); }
LLMC_INLINE vi part_and_i32(vi a, vi b) { return _mm512_and_si512(a, b); }
LLMC_INLINE vi part_or_i32(vi a, vi b) { return _mm512_or_si512(a, b); }
LLMC_INLINE vi part_xor_i32(vi a, vi b) { return _mm512_xor_si512(a, b); }
LLMC_INLINE vi part_multiply_u32(vi a, uint32_t b, vi* high) {
  const vi factor = _mm512_set1_epi32((int32_t)b);
  const vi even = _mm512_mul_epu32(a, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
  *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
template <int N> LLMC_INLINE vi part_shl(vi a) { return _mm512_slli_epi32(a, N); }
template <int N> LLMC_INLINE vi part_shr(vi a) { return _mm512_srai_epi32(a, N); }
LLMC_INLINE vi part_bits(vf a) { return _mm512_castps_si512(a); }
LLMC_INLINE vf part_from_bits(vi a) { return _mm512_castsi512_ps(a); }
LLMC_INLINE vf part_to_f32(vi a) { return _mm512_cvtepi32_ps(a); }
LLMC_INLINE vi part_to_i32(vf a) { return _mm512_cvtps_epi32(a); }

LLMC_INLINE vm part_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LLMC_INLINE vm part_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
LLMC_INLINE vm part_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
LLMC_INLINE vm part_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
LLMC_INLINE vm part_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
LLMC_INLINE vm part_ne(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
LLMC_INLINE vm part_lt_i32(vi a, vi b) { return _mm512_cmplt_epi32_mask(a, b); }
LLMC_INLINE vf part_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
LLMC_INLINE uint32_t part_lane_bits(vm m) { return m; }

LLMC_INLINE vf part_max(vf a, vf b) { return _mm512_max_ps(a, b); }
LLMC_INLINE vf part_min(vf a, vf b) { return _mm512_min_ps(a, b); }
LLMC_INLINE vf part_sqrt(vf a) { return _mm512_sqrt_ps(a); }
LLMC_INLINE vf part_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

LLMC_INLINE __m128 fold_add(__m256 a) { return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
LLMC_INLINE float part_reduce_add(const vf* v) {
  __m128 a = fold_add(_mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1)));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
LLMC_INLINE float part_reduce_max(const vf* v) { return _mm512_reduce_max_ps(v[0]); }

LLMC_INLINE void part_store_bf16(uint16_t* a, vf x) {
  vi u = _mm512_castps_si512(x);
  vi lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  vi rounded = _mm512_add_epi32(_mm512_add_epi32(u, lsb), _mm512_set1_epi32(0x7fff));
  vi quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256((__m256i*)a, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
LLMC_INLINE vf part_load_bf16(const uint16_t* a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)a)), 16));
}
LLMC_INLINE void part_store_s8(int8_t* a, vi x) { _mm_storeu_si128((__m128i*)a, _mm512_cvtsepi32_epi8(x)); }

#if defined(LLMC_VNNI)
LLMC_INLINE vi part_dot_i8(vi acc, vi u, vi s) { return _mm512_dpbusd_epi32(acc, u, s); }
#else
// Widened to 16 bits: vpmaddubsw would saturate at 2 * 255 * 127.
LLMC_INLINE vi part_dot_i8(vi acc, vi u, vi s) {
  vi ue = _mm512_and_si512(u, _mm512_set1_epi16(0xff)), uo = _mm512_srli_epi16(u, 8);
  vi se = _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8), so = _mm512_srai_epi16(s, 8);
  return _mm512_add_epi32(acc, _mm512_add_epi32(_mm512_madd_epi16(ue, se), _mm512_madd_epi16(uo, so)));
}
#endif

// --- what low-bit weights are made of (codes.h)
LLMC_INLINE vf part_load_f16(const uint16_t* a) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)a)); }
LLMC_INLINE vi part_load_s8(const int8_t* a) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)a)); }
LLMC_INLINE vi part_table(const uint8_t* a) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)a)); }
LLMC_INLINE vi part_look_up(vi table, vi index) { return _mm512_shuffle_epi8(table, index); }
LLMC_INLINE vi part_pairs(vi u, vi s) { return _mm512_maddubs_epi16(u, s); }
LLMC_INLINE vi part_add_i16(vi a, vi b) { return _mm512_add_epi16(a, b); }
LLMC_INLINE vi part_widen_pairs(vi a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
LLMC_INLINE int32_t part_sum_s8(const int8_t* a) {
  const __m128i raised = _mm_xor_si128(_mm_loadu_si128((const __m128i*)a), _mm_set1_epi8(-128));
  const __m128i halves = _mm_sad_epu8(raised, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves))) - 16 * 128;
}

// E4M3 bytes as bf16. The smallest eight magnitudes are no power of two times 1.m: a table has them, in low and high bytes.
LLMC_INLINE vi part_e4m3_pairs(const uint8_t* a) {
  const vi code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)a));
  const vi magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  const vi index = _mm512_add_epi16(_mm512_or_si512(magnitude, _mm512_slli_epi16(magnitude, 8)), _mm512_set1_epi16(0x800));
  vi bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  bits = _mm512_mask_blend_epi16(small, bits, part_look_up(part_table(E4M3_SMALL), index));
  bits = _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7fc0));
  return _mm512_or_si512(bits, _mm512_slli_epi16(_mm512_xor_si512(code, magnitude), 8));
}

}  // namespace llmc
