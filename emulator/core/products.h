// products.h - numbers out of operands' bytes, and small matrix products, for mma.sync and wgmma: f32 sums (i32 of s8), each
// along k in order.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "../include/llmc_emu/abi.h"
#include "../include/llmc_emu/formats.h"

namespace emu {

constexpr u32 element_bytes(Mma kind) { return kind == Mma::e4m3 || kind == Mma::s8 ? 1 : 2; }

// The 8 or 16 numbers in 16 bytes, `stride` apart.
template <class T>
void decode(Mma kind, const u8* from, T* to, u32 stride) {
  typedef u16 Halves __attribute__((vector_size(16)));
  typedef u32 Words __attribute__((vector_size(32)));
  if (element_bytes(kind) == 1) {
    for (u32 e = 0; e < 16; e++) to[e * stride] = T(kind == Mma::s8 ? float(static_cast<signed char>(from[e])) : e4m3_to_f32(from[e]));
    return;
  }
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  T wide[8];
  if (kind == Mma::bf16) {
    const Words bits = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(wide, &bits, sizeof wide);
  } else {
    for (u32 e = 0; e < 8; e++) wide[e] = T(f16_to_f32(halves[e]));
  }
  if (stride == 1) std::memcpy(to, wide, sizeof wide);
  else for (u32 e = 0; e < 8; e++) to[e * stride] = wide[e];
}

// The numbers in 16 bytes of each of 8 rows, as columns: number k of row r becomes to[k * stride + r].
template <class T>
void decode_columns(Mma kind, const u8* const (&rows)[8], T* to, u32 stride) {
  for (u32 r = 0; r < 8; r++) decode(kind, rows[r], to + r, stride);
}
template <>
inline void decode_columns(Mma kind, const u8* const (&rows)[8], float* to, u32 stride) {
  if (element_bytes(kind) == 1) {
    for (u32 r = 0; r < 8; r++) decode(kind, rows[r], to + r, stride);
    return;
  }
  __m256 x[8], y[8];
  for (u32 r = 0; r < 8; r++) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r]));
    x[r] = kind == Mma::bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)) : _mm256_cvtph_ps(halves);
  }
  for (u32 r = 0; r < 8; r += 2) y[r] = _mm256_unpacklo_ps(x[r], x[r + 1]), y[r + 1] = _mm256_unpackhi_ps(x[r], x[r + 1]);
  for (u32 r = 0; r < 8; r += 4)
    for (u32 h = 0; h < 2; h++) {
      x[r + h * 2] = _mm256_shuffle_ps(y[r + h], y[r + h + 2], 0x44);
      x[r + h * 2 + 1] = _mm256_shuffle_ps(y[r + h], y[r + h + 2], 0xEE);
    }
  for (u32 k = 0; k < 4; k++) {
    _mm256_storeu_ps(to + k * stride, _mm256_permute2f128_ps(x[k], x[k + 4], 0x20));
    _mm256_storeu_ps(to + (k + 4) * stride, _mm256_permute2f128_ps(x[k], x[k + 4], 0x31));
  }
}

// c[8, 8] += a[8, K] w[K, 8], all row-major. Lanes are columns of eight rows, so that no addition waits for the one
// before it.
template <class T>
inline __attribute__((always_inline)) void add_product(u32 K, const T* a, const T* w, u32 w_stride, T* c, u32 c_stride) {
  typedef T Lanes __attribute__((vector_size(32)));
  Lanes sums[8], row;
  for (u32 r = 0; r < 8; r++) std::memcpy(&sums[r], c + r * c_stride, sizeof row);
  for (u32 k = 0; k < K; k++) {
    std::memcpy(&row, w + k * w_stride, sizeof row);
#pragma GCC unroll 8
    for (u32 r = 0; r < 8; r++) sums[r] += a[r * K + k] * row;
  }
  for (u32 r = 0; r < 8; r++) std::memcpy(c + r * c_stride, &sums[r], sizeof row);
}

}  // namespace emu
