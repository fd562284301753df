// formats.h - number formats with the rounding the GPU's cvt instructions have (PTX ISA: cvt).
#pragma once
#include <cmath>
#include <cstring>

#include "abi.h"

namespace emu {

inline u32 bits_of(float x) {
  u32 u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float float_of(u32 u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// cvt.rn.bf16.f32: round to nearest even, every NaN becomes 0x7fff.
inline u16 f32_to_bf16(float x) {
  const u32 u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return u16((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float bf16_to_f32(u16 b) { return float_of(u32(b) << 16); }

inline u16 f32_to_f16(float x) {
  if (x != x) return 0x7fff;
  const _Float16 h = static_cast<_Float16>(x);
  u16 bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float f16_to_f32(u16 b) {
  _Float16 h;
  std::memcpy(&h, &b, 2);
  return static_cast<float>(h);
}

// e4m3 (OCP "fn": no infinity, NaN is S.1111.111, largest finite 448).
inline float e4m3_to_f32(u8 b) {
  const u32 exponent = (b >> 3) & 15u, mantissa = b & 7u;
  if (exponent == 15 && mantissa == 7) return float_of(0x7fffffffu);
  const float magnitude = exponent ? std::ldexp(1.0f + float(mantissa) / 8.0f, int(exponent) - 7)
                                   : std::ldexp(float(mantissa), -9);
  return b & 0x80 ? -magnitude : magnitude;
}

// cvt.rn.satfinite.e4m3x2.f32: nearest even, values beyond 448 become 448, NaN becomes 0x7f.
inline u8 f32_to_e4m3(float x) {
  if (x != x) return 0x7f;
  const u8 sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fabs(x);
  if (a >= 448.0f) return sign | 0x7e;
  int exponent = -6;  // of the binade that holds a; -6 also for subnormals
  if (a >= std::ldexp(1.0f, -6)) (void)std::frexp(a, &exponent), exponent -= 1;
  const float steps = std::nearbyint(std::ldexp(a, 3 - exponent));  // in units of 2^(exponent-3)
  if (a < std::ldexp(1.0f, -6)) return sign | u8(steps);
  const u32 code = (u32(exponent + 7) << 3) + u32(steps) - 8;
  return sign | u8(code > 0x7e ? 0x7e : code);
}

}  // namespace emu
