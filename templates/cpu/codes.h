// Low-bit weights in memory: the codes that they are held in, the types of their scales and offsets, and how both come
// into vectors.
//
// A kernel with int8 inputs sees every code as an unsigned byte, the value it stands for plus BIAS (a power of two or 0);
// what the bias adds to a sum is taken off at its start. Bytes lie as int8 panels do: four columns of the input of one
// output channel to a lane of 32 bits.
#pragma once
#include "simd.h"

namespace llmc {

struct Half { uint16_t bits; };   // float16
struct Brain { uint16_t bits; };  // bfloat16
struct None {};                   // no offsets

LLMC_INLINE f32x16 load_16(const float* a) { return load(a); }
LLMC_INLINE f32x16 load_16(const Half* a) {
  f32x16 r; LLMC_PARTS r.p[i] = part_load_f16((const uint16_t*)a + i * PART_LANES); return r;
}
LLMC_INLINE f32x16 load_16(const Brain* a) { return load_bf16((const uint16_t*)a); }
LLMC_INLINE i32x16 load_16_i32(const int8_t* a) {
  i32x16 r; LLMC_PARTS r.p[i] = part_load_s8(a + i * PART_LANES); return r;
}
LLMC_INLINE f32x16 load_16(const int8_t* a) { return to_f32(load_16_i32(a)); }
template <class T> LLMC_INLINE float load_1(const T* a) {
  T line[16] = {*a};
  float out[16];
  store(out, load_16(line));
  return out[0];
}

// table[index] for every byte; indices are 0..15.
LLMC_INLINE i32x16 look_up(const uint8_t (&table)[16], i32x16 index) {
  const vi t = part_table(table);
  i32x16 r; LLMC_PARTS r.p[i] = part_look_up(t, index.p[i]); return r;
}
LLMC_INLINE int32_t sum_s8(const int8_t* a, int64_t n) {  // n: a multiple of 16
  int32_t sum = 0;
  for (int64_t i = 0; i < n; i += 16) sum += part_sum_s8(a + i);
  return sum;
}

// --- codes. BITS in memory; VALUE_SCALE: what a kernel's integers are to be multiplied with; LARGEST: of a biased byte.
struct S8 {
  static constexpr int BITS = 8, BIAS = 128, LARGEST = 255;
  static constexpr float VALUE_SCALE = 1.0f;
  static constexpr bool TABLE = false;
  LLMC_INLINE int value(uint8_t code) { return (int)code - BIAS; }
};

// Of four bits: byte j of a lane holds column j of eight in its low half and column 4 + j in its high one.
struct S4 {
  static constexpr int BITS = 4, BIAS = 8, LARGEST = 15;
  static constexpr float VALUE_SCALE = 1.0f;
  static constexpr bool TABLE = false;
  LLMC_INLINE int value(uint8_t code) { return (int)code - BIAS; }
};
struct U4 {
  static constexpr int BITS = 4, BIAS = 0, LARGEST = 15;
  static constexpr float VALUE_SCALE = 1.0f;
  static constexpr bool TABLE = false;
  LLMC_INLINE int value(uint8_t code) { return code; }
};
struct E2M1 {  // integers are twice the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
  static constexpr int BITS = 4, BIAS = 16, LARGEST = 28;
  static constexpr float VALUE_SCALE = 0.5f;
  static constexpr bool TABLE = true;
  static constexpr uint8_t BYTES[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
  LLMC_INLINE int value(uint8_t code) { return (int)BYTES[code] - BIAS; }
};
struct NL4 {
  static constexpr int BITS = 4, BIAS = 128, LARGEST = 241;
  static constexpr float VALUE_SCALE = 1.0f;
  static constexpr bool TABLE = true;
  static constexpr uint8_t BYTES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                        129, 141, 153, 166, 181, 197, 217, 241};
  LLMC_INLINE int value(uint8_t code) { return (int)BYTES[code] - BIAS; }
};

// 16 columns of a panel, STEP columns of the input at a time: biased bytes of four columns in each element of `out`.
template <class C> constexpr int STEP = C::BITS == 4 ? 8 : 4;
template <class C> LLMC_INLINE void load_codes(const uint8_t* w, i32x16 (&out)[STEP<C> / 4]) {
  const i32x16 packed = load_i32(w);
  if constexpr (C::BITS == 8) {
    out[0] = packed;
  } else {
    const i32x16 low = splat_i32(0x0f0f0f0f);
    out[0] = and_i32(packed, low);
    out[1] = and_i32(shift_right<4>(packed), low);
    if constexpr (C::TABLE)
      for (i32x16& bytes : out) bytes = look_up(C::BYTES, bytes);
  }
}

// --- eight-bit floats: sign, 4 bits of exponent (bias 7), 3 of mantissa; all ones is NaN. Two columns to 16 bits.
struct E4M3 {
  static constexpr int BITS = 8;
  static constexpr float VALUE_SCALE = 1.0f;
  LLMC_INLINE float value(uint8_t code) {
    const uint32_t magnitude = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    if (magnitude == 0x7f) return __builtin_nanf("");
    const float x = magnitude < 8 ? (float)(int)magnitude * 0x1p-9f : bits_float((magnitude << 20) + (120u << 23));
    return bits_float(float_bits(x) | sign);
  }
};
// 16 pairs of codes as pairs of bf16.
LLMC_INLINE i32x16 e4m3_pairs(const uint8_t* a) {
  i32x16 r;
#if defined(LLMC_AVX512) || defined(LLMC_AVX2)
  LLMC_PARTS r.p[i] = part_e4m3_pairs(a + i * 2 * PART_LANES);
#else
  uint16_t pairs[32];
  for (int i = 0; i < 32; ++i) pairs[i] = to_bf16(E4M3::value(a[i]));
  r = load_i32(pairs);
#endif
  return r;
}

}  // namespace llmc
