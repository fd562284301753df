// products.h - numbers out of operands' bytes, and small matrix products, for mma.sync and wgmma: f32 sums (i32 of s8), each
// along k in order.
#pragma once
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

// c[8, 8] += a[8, K] w[K, 8], all row-major. Lanes are columns of eight rows, so that no addition waits for the one
// before it.
template <u32 K, class T>
void add_product(const T* a, const T* w, u32 w_stride, T* c, u32 c_stride) {
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
