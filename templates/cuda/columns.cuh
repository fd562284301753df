// columns.cuh - neighbouring columns of one row, in f32 registers, from and to rows of any float format: 4 columns of
// f32 or 8 of a half format move in 16 bytes, single columns serve tails.
#pragma once
#include "device.cuh"

LLMC_DEVICE bf16 rounded(bf16, float v) { return to_bf16(v); }
LLMC_DEVICE f16 rounded(f16, float v) { return to_f16(v); }

template <class H>  // bf16 or f16
LLMC_DEVICE float low_half(u32 pair) { return to_f32(H{(unsigned short)(pair & 0xffff)}); }
template <class H>
LLMC_DEVICE float high_half(u32 pair) { return to_f32(H{(unsigned short)(pair >> 16)}); }
template <class H>
LLMC_DEVICE u32 pack_halves(float lo, float hi) {
  return u32(rounded(H{}, lo).bits) | u32(rounded(H{}, hi).bits) << 16;
}

LLMC_DEVICE void load_columns(float (&v)[1], const float* p) { v[0] = *p; }
LLMC_DEVICE void load_columns(float (&v)[4], const float* p) {
  const Vec16 x = load16(p);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) v[i] = bits_float(x.x[i]);
}
LLMC_DEVICE void load_columns(float (&v)[8], const float* p) {
  const Vec16 lo = load16(p), hi = load16(p + 4);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) v[i] = bits_float(lo.x[i]), v[i + 4] = bits_float(hi.x[i]);
}
template <class H>
LLMC_DEVICE void load_columns(float (&v)[1], const H* p) { v[0] = to_f32(*p); }
template <class H>
LLMC_DEVICE void load_columns(float (&v)[4], const H* p) {
  const Vec8 x = load8(p);
  LLMC_UNROLL
  for (int i = 0; i < 2; i++) v[2 * i] = low_half<H>(x.x[i]), v[2 * i + 1] = high_half<H>(x.x[i]);
}
template <class H>
LLMC_DEVICE void load_columns(float (&v)[8], const H* p) {
  const Vec16 x = load16(p);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) v[2 * i] = low_half<H>(x.x[i]), v[2 * i + 1] = high_half<H>(x.x[i]);
}

LLMC_DEVICE void store_columns(float* p, const float (&v)[1]) { *p = v[0]; }
LLMC_DEVICE void store_columns(float* p, const float (&v)[4]) {
  store16(p, Vec16{{float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3])}});
}
template <class H>
LLMC_DEVICE void store_columns(H* p, const float (&v)[1]) { *p = rounded(H{}, v[0]); }
template <class H>
LLMC_DEVICE void store_columns(H* p, const float (&v)[8]) {
  store16(p, Vec16{{pack_halves<H>(v[0], v[1]), pack_halves<H>(v[2], v[3]), pack_halves<H>(v[4], v[5]),
                    pack_halves<H>(v[6], v[7])}});
}

// Row `row` of a matrix whose rows lie `bytes` apart.
template <class T>
LLMC_DEVICE T* row_at(T* p, int row, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(p) + u64(row) * u64(bytes));
}
