// types.h - the element types kernels name, and their conversions.
#pragma once
#include "builtins.h"
#include "formats.h"

using u32 = emu::u32;
using i32 = emu::i32;
using u64 = emu::u64;

struct bf16 { emu::u16 bits; };
struct f16 { emu::u16 bits; };
struct e4m3 { emu::u8 bits; };
struct s8 { signed char value; };

inline u32 float_bits(float x) { return emu::bits_of(x); }
inline float bits_float(u32 x) { return emu::float_of(x); }
inline u64 double_bits(double x) {
  u64 u;
  std::memcpy(&u, &x, 8);
  return u;
}
inline double bits_double(u64 u) {
  double x;
  std::memcpy(&x, &u, 8);
  return x;
}
inline float to_f32(bf16 x) { return emu::bf16_to_f32(x.bits); }
inline float to_f32(f16 x) { return emu::f16_to_f32(x.bits); }
inline float to_f32(e4m3 x) { return emu::e4m3_to_f32(x.bits); }
inline bf16 to_bf16(float x) { return bf16{emu::f32_to_bf16(x)}; }
inline f16 to_f16(float x) { return f16{emu::f32_to_f16(x)}; }
inline e4m3 to_e4m3(float x) { return e4m3{emu::f32_to_e4m3(x)}; }
inline u32 pack_bf16(float lo, float hi) {
  return u32(emu::f32_to_bf16(lo)) | u32(emu::f32_to_bf16(hi)) << 16;
}
inline float exp2_approx(float x) { return exp2f(x); }
inline float rsqrt_approx(float x) { return 1.0f / sqrtf(x); }
inline float rcp_approx(float x) { return 1.0f / x; }
