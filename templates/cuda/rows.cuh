// rows.cuh - what generated kernels of row-wise nodes are made of (codegen/cuda/rows/emit.py writes the loops): elements
// of every stored type as floats, ints and bools, one or eight at a time, and reductions in one order.
#pragma once
#include "kv.cuh"
#include "math.cuh"
#include "step.cuh"

// Row `row` of a [rows, ...] value with `bytes` from row to row.
template <class T>
LLMC_DEVICE T* row_of(T* first, int row, int bytes) { return (T*)((u64)first + (u64)row * bytes); }

// --- one element
LLMC_DEVICE float get(const float* p, int i) { return p[i]; }
LLMC_DEVICE float get(const bf16* p, int i) { return to_f32(p[i]); }
LLMC_DEVICE float get(const f16* p, int i) { return to_f32(p[i]); }
LLMC_DEVICE int get(const int* p, int i) { return p[i]; }
LLMC_DEVICE bool get(const unsigned char* p, int i) { return p[i] != 0; }
LLMC_DEVICE void put(float* p, int i, float v) { p[i] = v; }
LLMC_DEVICE void put(bf16* p, int i, float v) { p[i] = to_bf16(v); }
LLMC_DEVICE void put(f16* p, int i, float v) { p[i] = to_f16(v); }
LLMC_DEVICE void put(int* p, int i, int v) { p[i] = v; }
LLMC_DEVICE void put(unsigned char* p, int i, bool v) { p[i] = v ? 1 : 0; }

// --- eight elements of global memory, on a boundary of eight
LLMC_DEVICE void get8(float (&r)[8], const float* p) {
  const Vec16 a = load16(p), b = load16(p + 4);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) r[i] = bits_float(a.x[i]), r[4 + i] = bits_float(b.x[i]);
}
LLMC_DEVICE void get8(float (&r)[8], const bf16* p) {
  const Vec16 a = load16(p);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) r[2 * i] = bf16_lo(a.x[i]), r[2 * i + 1] = bf16_hi(a.x[i]);
}
LLMC_DEVICE void get8(float (&r)[8], const f16* p) {
  const Vec16 a = load16(p);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) {
    r[2 * i] = to_f32(f16{(unsigned short)(a.x[i] & 0xffff)});
    r[2 * i + 1] = to_f32(f16{(unsigned short)(a.x[i] >> 16)});
  }
}
LLMC_DEVICE void get8(int (&r)[8], const int* p) {
  const Vec16 a = load16(p), b = load16(p + 4);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) r[i] = int(a.x[i]), r[4 + i] = int(b.x[i]);
}
LLMC_DEVICE void get8(bool (&r)[8], const unsigned char* p) {
  const u32 a = load4(p), b = load4(p + 4);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) r[i] = (a >> 8 * i & 0xff) != 0, r[4 + i] = (b >> 8 * i & 0xff) != 0;
}
LLMC_DEVICE void put8(float* p, const float (&r)[8]) {
  store16(p, Vec16{{float_bits(r[0]), float_bits(r[1]), float_bits(r[2]), float_bits(r[3])}});
  store16(p + 4, Vec16{{float_bits(r[4]), float_bits(r[5]), float_bits(r[6]), float_bits(r[7])}});
}
LLMC_DEVICE void put8(bf16* p, const float (&r)[8]) {
  store16(p, Vec16{{pack_bf16(r[0], r[1]), pack_bf16(r[2], r[3]), pack_bf16(r[4], r[5]), pack_bf16(r[6], r[7])}});
}
LLMC_DEVICE void put8(f16* p, const float (&r)[8]) {
  Vec16 v;
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) v.x[i] = u32(to_f16(r[2 * i]).bits) | u32(to_f16(r[2 * i + 1]).bits) << 16;
  store16(p, v);
}
LLMC_DEVICE void put8(int* p, const int (&r)[8]) {
  store16(p, Vec16{{u32(r[0]), u32(r[1]), u32(r[2]), u32(r[3])}});
  store16(p + 4, Vec16{{u32(r[4]), u32(r[5]), u32(r[6]), u32(r[7])}});
}
LLMC_DEVICE void put8(unsigned char* p, const bool (&r)[8]) {
  u32 a = 0, b = 0;
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) a |= u32(r[i]) << 8 * i, b |= u32(r[4 + i]) << 8 * i;
  store4(p, a);
  store4(p + 4, b);
}

// --- eight elements of shared memory, on a boundary of eight
LLMC_DEVICE void get8_shared(float (&r)[8], const float* p) {
  const Vec16 a = *reinterpret_cast<const Vec16*>(p), b = *reinterpret_cast<const Vec16*>(p + 4);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) r[i] = bits_float(a.x[i]), r[4 + i] = bits_float(b.x[i]);
}
LLMC_DEVICE void put8_shared(float* p, const float (&r)[8]) {
  LLMC_UNROLL
  for (int h = 0; h < 8; h += 4)
    *reinterpret_cast<Vec16*>(p + h) =
        Vec16{{float_bits(r[h]), float_bits(r[h + 1]), float_bits(r[h + 2]), float_bits(r[h + 3])}};
}
LLMC_DEVICE void get8_shared(int (&r)[8], const int* p) {
  LLMC_UNROLL
  for (int i = 0; i < 8; i++) r[i] = p[i];
}
LLMC_DEVICE void put8_shared(int* p, const int (&r)[8]) {
  LLMC_UNROLL
  for (int i = 0; i < 8; i++) p[i] = r[i];
}
LLMC_DEVICE void get8_shared(bool (&r)[8], const unsigned char* p) {
  LLMC_UNROLL
  for (int i = 0; i < 8; i++) r[i] = p[i] != 0;
}
LLMC_DEVICE void put8_shared(unsigned char* p, const bool (&r)[8]) {
  LLMC_UNROLL
  for (int i = 0; i < 8; i++) p[i] = r[i] ? 1 : 0;
}

// --- reductions
struct Sum {
  static LLMC_DEVICE float identity() { return 0.0f; }
  static LLMC_DEVICE float of(float a, float b) { return a + b; }
};
struct Max {
  static LLMC_DEVICE float identity() { return -inf_f32(); }
  static LLMC_DEVICE float of(float a, float b) { return max_f32(a, b); }
};
struct Min {
  static LLMC_DEVICE float identity() { return inf_f32(); }
  static LLMC_DEVICE float of(float a, float b) { return min_f32(a, b); }
};
// Over groups of LANES neighbouring lanes (a power of two), a butterfly; every lane of the warp calls and gets its group's.
template <class Op, int LANES>
LLMC_DEVICE float over_lanes(float v) {
  LLMC_UNROLL
  for (int bit = LANES / 2; bit; bit >>= 1) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, bit));
  return v;
}
// A warp's part of a reduction over the block goes to partial[warp]; behind a __syncthreads() total_of joins N of them in
// order, in every thread.
template <class Op>
LLMC_DEVICE void leave_total(float v, float* partial) {
  v = over_lanes<Op, 32>(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
}
template <class Op, int N>
LLMC_DEVICE float total_of(const float* partial) {
  float v = partial[0];
  LLMC_UNROLL
  for (int i = 1; i < N; i++) v = Op::of(v, partial[i]);
  return v;
}
