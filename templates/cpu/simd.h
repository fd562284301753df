// The vector vocabulary every kernel is written in: f32x16, i32x16 and mask16, sixteen lanes on every target, made of
// PARTS native registers. The target's macros (codegen/cpu/target.py) choose the native part; nothing is sniffed.
//
//   LLMC_AVX512  AVX-512 F, BW, DQ, VL, CD, and FMA      LLMC_AVX2  AVX2, FMA      LLMC_NEON  AArch64      else portable C
//   LLMC_VNNI    vpdpbusd on zmm, with AVX2 on ymm        LLMC_BF16  vdpbf16ps      LLMC_AMX  tiles (bf16 and int8)
//   LLMC_DOTPROD sdot                                     LLMC_I8MM  usdot
//
// numerics: IEEE f32, round to nearest even; where the target has FMA, fma() rounds once, in portable C it rounds twice.
// The thread pool runs kernels with denormals flushed to zero (threads.h), the functions here do not ask for that.
#pragma once
#include <stdint.h>

#define LLMC_INLINE static inline __attribute__((always_inline))
#define LLMC_METHOD inline __attribute__((always_inline))
#define LLMC_UNROLL _Pragma("GCC unroll 16")

namespace llmc {

LLMC_INLINE uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
LLMC_INLINE float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }

// 0 to 7 times 2^-9 in bf16: low bytes, then high ones.
constexpr uint8_t E4M3_SMALL[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60,
                                    0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};

}  // namespace llmc

#if defined(LLMC_AVX512)
#include "simd_avx512.h"
#elif defined(LLMC_AVX2)
#include "simd_avx2.h"
#elif defined(LLMC_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace llmc {

constexpr int PARTS = 16 / PART_LANES;

struct f32x16 { vf p[PARTS]; };
struct i32x16 { vi p[PARTS]; };
struct mask16 { vm p[PARTS]; };

#define LLMC_PARTS LLMC_UNROLL for (int i = 0; i < PARTS; ++i)

// --- construction and memory; n = number of valid lanes: the others load as zero and are not stored
LLMC_INLINE f32x16 splat(float x) { f32x16 r; LLMC_PARTS r.p[i] = part_set(x); return r; }
LLMC_INLINE i32x16 splat_i32(int32_t x) { i32x16 r; LLMC_PARTS r.p[i] = part_set_i32(x); return r; }
LLMC_INLINE f32x16 load(const float* a) { f32x16 r; LLMC_PARTS r.p[i] = part_load(a + i * PART_LANES); return r; }
LLMC_INLINE i32x16 load_i32(const void* a) {
  i32x16 r; LLMC_PARTS r.p[i] = part_load_i32((const int32_t*)a + i * PART_LANES); return r;
}
LLMC_INLINE void store(float* a, f32x16 x) { LLMC_PARTS part_store(a + i * PART_LANES, x.p[i]); }
LLMC_INLINE void store_i32(void* a, i32x16 x) { LLMC_PARTS part_store_i32((int32_t*)a + i * PART_LANES, x.p[i]); }
LLMC_INLINE f32x16 load(const float* a, int n) {
  f32x16 r; LLMC_PARTS r.p[i] = part_load_n(a + i * PART_LANES, n - i * PART_LANES); return r;
}
LLMC_INLINE void store(float* a, f32x16 x, int n) {
  LLMC_PARTS part_store_n(a + i * PART_LANES, x.p[i], n - i * PART_LANES);
}
LLMC_INLINE i32x16 lane_ids() { i32x16 r; LLMC_PARTS r.p[i] = part_iota(i * PART_LANES); return r; }

// --- arithmetic
#define LLMC_OPERATOR(op) \
  LLMC_INLINE f32x16 operator op(f32x16 a, f32x16 b) { f32x16 r; LLMC_PARTS r.p[i] = a.p[i] op b.p[i]; return r; } \
  LLMC_INLINE f32x16 operator op(f32x16 a, float b) { return a op splat(b); } \
  LLMC_INLINE f32x16 operator op(float a, f32x16 b) { return splat(a) op b; }
LLMC_OPERATOR(+) LLMC_OPERATOR(-) LLMC_OPERATOR(*) LLMC_OPERATOR(/)
#undef LLMC_OPERATOR
#define LLMC_BINARY_I32(name) \
  LLMC_INLINE i32x16 name(i32x16 a, i32x16 b) { i32x16 r; LLMC_PARTS r.p[i] = part_##name(a.p[i], b.p[i]); return r; }
LLMC_BINARY_I32(add_i32) LLMC_BINARY_I32(sub_i32) LLMC_BINARY_I32(and_i32) LLMC_BINARY_I32(or_i32)
LLMC_BINARY_I32(xor_i32)
#undef LLMC_BINARY_I32
// The 64-bit products of unsigned lanes, in halves.
struct Products { i32x16 low, high; };
LLMC_INLINE Products multiply_u32(i32x16 a, uint32_t b) {
  Products r; LLMC_PARTS r.low.p[i] = part_multiply_u32(a.p[i], b, &r.high.p[i]); return r;
}
template <int N> LLMC_INLINE i32x16 shift_left(i32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_shl<N>(a.p[i]); return r; }
template <int N> LLMC_INLINE i32x16 shift_right(i32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_shr<N>(a.p[i]); return r; }

LLMC_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  f32x16 r; LLMC_PARTS r.p[i] = part_fma(a.p[i], b.p[i], c.p[i]); return r;
}
LLMC_INLINE f32x16 fma(f32x16 a, float b, f32x16 c) { return fma(a, splat(b), c); }
LLMC_INLINE f32x16 fma(f32x16 a, float b, float c) { return fma(a, splat(b), splat(c)); }
LLMC_INLINE f32x16 fma(f32x16 a, f32x16 b, float c) { return fma(a, b, splat(c)); }

LLMC_INLINE i32x16 bits(f32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_bits(a.p[i]); return r; }
LLMC_INLINE f32x16 from_bits(i32x16 a) { f32x16 r; LLMC_PARTS r.p[i] = part_from_bits(a.p[i]); return r; }
LLMC_INLINE f32x16 to_f32(i32x16 a) { f32x16 r; LLMC_PARTS r.p[i] = part_to_f32(a.p[i]); return r; }
LLMC_INLINE i32x16 to_i32(f32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_to_i32(a.p[i]); return r; }  // nearest even

// --- comparison and selection
#define LLMC_COMPARE(name) \
  LLMC_INLINE mask16 name(f32x16 a, f32x16 b) { mask16 r; LLMC_PARTS r.p[i] = part_##name(a.p[i], b.p[i]); return r; } \
  LLMC_INLINE mask16 name(f32x16 a, float b) { return name(a, splat(b)); }
LLMC_COMPARE(lt) LLMC_COMPARE(le) LLMC_COMPARE(gt) LLMC_COMPARE(ge) LLMC_COMPARE(eq) LLMC_COMPARE(ne)
#undef LLMC_COMPARE
LLMC_INLINE mask16 lt_i32(i32x16 a, i32x16 b) {
  mask16 r; LLMC_PARTS r.p[i] = part_lt_i32(a.p[i], b.p[i]); return r;
}
LLMC_INLINE mask16 is_nan(f32x16 a) { return ne(a, a); }
LLMC_INLINE mask16 first_lanes(int n) { return lt_i32(lane_ids(), splat_i32(n)); }
LLMC_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {  // m ? a : b
  f32x16 r; LLMC_PARTS r.p[i] = part_select(m.p[i], a.p[i], b.p[i]); return r;
}
LLMC_INLINE f32x16 select(mask16 m, float a, f32x16 b) { return select(m, splat(a), b); }
LLMC_INLINE f32x16 select(mask16 m, f32x16 a, float b) { return select(m, a, splat(b)); }
LLMC_INLINE f32x16 select(mask16 m, float a, float b) { return select(m, splat(a), splat(b)); }
LLMC_INLINE uint32_t lane_bits(mask16 m) {  // bit i = lane i
  uint32_t r = 0; LLMC_PARTS r |= part_lane_bits(m.p[i]) << (i * PART_LANES); return r;
}

// --- max_raw and min_raw are the hardware's (a NaN lane is unspecified); max and min give NaN where either is NaN
LLMC_INLINE f32x16 max_raw(f32x16 a, f32x16 b) { f32x16 r; LLMC_PARTS r.p[i] = part_max(a.p[i], b.p[i]); return r; }
LLMC_INLINE f32x16 min_raw(f32x16 a, f32x16 b) { f32x16 r; LLMC_PARTS r.p[i] = part_min(a.p[i], b.p[i]); return r; }
LLMC_INLINE f32x16 nan_of(f32x16 a, f32x16 b, f32x16 r) { return select(is_nan(a), a, select(is_nan(b), b, r)); }
LLMC_INLINE f32x16 max(f32x16 a, f32x16 b) { return nan_of(a, b, max_raw(a, b)); }
LLMC_INLINE f32x16 min(f32x16 a, f32x16 b) { return nan_of(a, b, min_raw(a, b)); }
LLMC_INLINE f32x16 max(f32x16 a, float b) { return max(a, splat(b)); }
LLMC_INLINE f32x16 min(f32x16 a, float b) { return min(a, splat(b)); }

LLMC_INLINE f32x16 sqrt(f32x16 a) { f32x16 r; LLMC_PARTS r.p[i] = part_sqrt(a.p[i]); return r; }
LLMC_INLINE f32x16 rsqrt(f32x16 a) { return 1.0f / sqrt(a); }
LLMC_INLINE f32x16 round(f32x16 a) { f32x16 r; LLMC_PARTS r.p[i] = part_round(a.p[i]); return r; }  // nearest even
LLMC_INLINE f32x16 abs(f32x16 a) { return from_bits(and_i32(bits(a), splat_i32(0x7fffffff))); }
LLMC_INLINE f32x16 neg(f32x16 a) { return from_bits(sub_i32(bits(a), splat_i32((int32_t)0x80000000u))); }
LLMC_INLINE f32x16 operator-(f32x16 a) { return neg(a); }
LLMC_INLINE f32x16 copysign(f32x16 magnitude, f32x16 sign) {
  return from_bits(or_i32(bits(abs(magnitude)), and_i32(bits(sign), splat_i32((int32_t)0x80000000u))));
}

// --- horizontal reductions, one fixed tree: lanes i and i+8, then i+4, i+2, i+1
LLMC_INLINE float reduce_add(f32x16 a) { return part_reduce_add(a.p); }
LLMC_INLINE float reduce_max(f32x16 a) { return part_reduce_max(a.p); }  // a NaN lane is unspecified
LLMC_INLINE float reduce_min(f32x16 a) { return -reduce_max(neg(a)); }
LLMC_INLINE int32_t reduce_add_i32(i32x16 a) {
  int32_t v[16];
  store_i32(v, a);
  int32_t s = 0;
  LLMC_UNROLL for (int i = 0; i < 16; ++i) s += v[i];
  return s;
}

// --- narrow formats
// 16 f32 -> 16 bf16, round to nearest even, NaN stays NaN, denormals kept.
LLMC_INLINE void store_bf16(uint16_t* a, f32x16 x) { LLMC_PARTS part_store_bf16(a + i * PART_LANES, x.p[i]); }
LLMC_INLINE f32x16 load_bf16(const uint16_t* a) {
  f32x16 r; LLMC_PARTS r.p[i] = part_load_bf16(a + i * PART_LANES); return r;
}
LLMC_INLINE uint16_t to_bf16(float x) {
  uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
LLMC_INLINE float from_bf16(uint16_t h) { return bits_float((uint32_t)h << 16); }
// The two halves of 16 bf16 pairs as f32: lane i of even = element 2i, of odd = element 2i+1.
LLMC_INLINE f32x16 pair_even(i32x16 a) { return from_bits(shift_left<16>(a)); }
LLMC_INLINE f32x16 pair_odd(i32x16 a) { return from_bits(and_i32(a, splat_i32((int32_t)0xffff0000u))); }
// 16 i32 -> 16 s8, saturating.
LLMC_INLINE void store_s8(int8_t* a, i32x16 x) { LLMC_PARTS part_store_s8(a + i * PART_LANES, x.p[i]); }
// acc + sum over the four bytes of each lane, u unsigned, s signed; exact.
LLMC_INLINE i32x16 dot_i8(i32x16 acc, i32x16 u, i32x16 s) {
  i32x16 r; LLMC_PARTS r.p[i] = part_dot_i8(acc.p[i], u.p[i], s.p[i]); return r;
}

// Keeps the compiler from holding on to what it loaded before.
LLMC_INLINE void load_again() { asm volatile("" ::: "memory"); }
// Has the compiler finish x here: work that an unrolled loop leaves for later keeps its operands in registers meanwhile.
LLMC_INLINE void finish_here(i32x16& x) {
#if defined(LLMC_AVX512) || defined(LLMC_AVX2)
  LLMC_PARTS asm volatile("" : "+v"(x.p[i]));
#else
  (void)x;
#endif
}
LLMC_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
LLMC_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace llmc
