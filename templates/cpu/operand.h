// Formats of a linear's weights and of the rows it reads (its operand), and the row primitive that writes an operand.
//
// Weights: panels of PANEL = 32 output columns, K contiguous inside a panel; N padded to 32 and K to FORMAT::pad_k(k)
// with zeros. codegen/packing.py is the definition in Python.
//   F32      float    [n/32][k][32]
//   Bf16     bf16     [n/32][k/2][32][2]
//   Int8<G>  u8 = w + 128, per output channel  [n/32][k/4][32][4], and float scales[n] beside
// Operand rows: row r starts at r * FORMAT::row_bytes(k); 64-byte aligned for Bf16 and Int8.
//   F32      float[k]: any f32 activation rows are an operand as they stand
//   Bf16     bf16[pad_k], nearest even
//   Int8<G>  s8[pad_k], then float scale[groups], then int32 zero[groups] = -128 * sum(q); a group is G columns,
//            G = 0: the whole row. scale = max|x| / 127, q = x / scale to nearest even; a group with a NaN or an
//            infinity gets a NaN scale, so that what comes of it is not finite.
// numerics: canonical, see tile.h.
#pragma once
#include "simd.h"

#ifndef LLMC_PREFETCH_BYTES
#define LLMC_PREFETCH_BYTES 4096
#endif

namespace llmc {

constexpr int PANEL = 32;  // output columns of a weight panel: two f32x16

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// An odd number of cache lines, so that equal columns of neighbouring rows never share an L1 set.
constexpr int64_t odd_lines(int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

struct F32 {
  static constexpr int64_t pad_k(int64_t k) { return k; }
  static constexpr int64_t row_bytes(int64_t k) { return 4 * k; }
  static constexpr int64_t panel_bytes(int64_t k) { return k * PANEL * 4; }
};

struct Bf16 {
  static constexpr int64_t pad_k(int64_t k) { return round_up(k, 32); }
  static constexpr int64_t row_bytes(int64_t k) { return odd_lines(2 * pad_k(k)); }
  static constexpr int64_t panel_bytes(int64_t k) { return pad_k(k) * PANEL * 2; }
};

template <int G> struct Int8 {
  static_assert(G == 0 || G == 32 || G % 64 == 0, "a group is the whole row (0), 32, or a multiple of 64 columns");
  static constexpr int GROUP = G;
  static constexpr int64_t pad_k(int64_t k) { return round_up(k, G > 64 ? G : 64); }
  static constexpr int64_t groups(int64_t k) { return G == 0 ? 1 : pad_k(k) / (G == 0 ? 1 : G); }
  static constexpr int64_t group_len(int64_t k) { return G == 0 ? pad_k(k) : G; }
  static constexpr int64_t row_bytes(int64_t k) { return odd_lines(pad_k(k) + 8 * groups(k)); }
  static constexpr int64_t panel_bytes(int64_t k) { return pad_k(k) * PANEL; }
  static const float* scales(const uint8_t* row, int64_t k) { return (const float*)(row + pad_k(k)); }
  static const int32_t* zeros(const uint8_t* row, int64_t k) { return (const int32_t*)(scales(row, k) + groups(k)); }
};

// x [k] -> one operand row.
template <class F> struct QuantizeRow;
template <class F> LLMC_INLINE void quantize_row(const float* x, int k, void* row) {
  QuantizeRow<F>::run(x, k, (uint8_t*)row);
}

template <> struct QuantizeRow<F32> {
  LLMC_INLINE void run(const float* x, int k, uint8_t* row) {
    for (int i = 0; i < k; i += 16) store((float*)row + i, load(x + i, k - i), k - i);
  }
};

template <> struct QuantizeRow<Bf16> {
  LLMC_INLINE void run(const float* x, int k, uint8_t* row) {
    uint16_t* y = (uint16_t*)row;
    int i = 0, padded = (int)Bf16::pad_k(k);
    for (; i + 16 <= k; i += 16) store_bf16(y + i, load(x + i));
    for (; i < padded; i += 16) store_bf16(y + i, load(x + i, k - i));
  }
};

template <int G> struct QuantizeRow<Int8<G>> {
  LLMC_INLINE void run(const float* x, int k, uint8_t* row) {
    using F = Int8<G>;
    int8_t* q = (int8_t*)row;
    float* scales = (float*)(row + F::pad_k(k));
    int32_t* zeros = (int32_t*)(scales + F::groups(k));
    const int len = (int)F::group_len(k);
    for (int g = 0; g < F::groups(k); ++g) {
      const int begin = g * len;
      f32x16 largest = splat(0.0f), bad = splat(0.0f);  // bad: NaN where x is not finite
      for (int i = begin; i < begin + len; i += 16) {
        f32x16 v = load(x + i, k - i);
        largest = max_raw(largest, abs(v));
        bad = bad + (v - v);
      }
      float m = reduce_max(largest), nan = reduce_add(bad);
      bool zero = m < 1e-30f;
      f32x16 inverse = splat(zero ? 0.0f : 127.0f / m);
      i32x16 sum = splat_i32(0);
      for (int i = begin; i < begin + len; i += 16) {
        i32x16 v = to_i32(load(x + i, k - i) * inverse);
        sum = add_i32(sum, v);
        store_s8(q + i, v);
      }
      scales[g] = (zero ? 0.0f : m / 127.0f) + nan;
      zeros[g] = (int32_t)(-128u * (uint32_t)reduce_add_i32(sum));
    }
  }
};

// Row n of the weights as f32 [k]: the embedding of a tied head reads the head's panels.
struct Table {
  const void *panels, *scales, *offsets;  // null where the format has none
};
template <class F> struct EmbedRow;
template <class F> LLMC_INLINE void embed_row(const Table& t, int64_t n, int k, float* out) {
  const uint8_t* panel = (const uint8_t*)t.panels + n / PANEL * F::panel_bytes(k);
  EmbedRow<F>::run(t, panel, n, k, out);
}
template <> struct EmbedRow<F32> {
  LLMC_INLINE void run(const Table&, const uint8_t* panel, int64_t n, int k, float* out) {
    const float* w = (const float*)panel + n % PANEL;
    for (int i = 0; i < k; ++i) out[i] = w[(int64_t)i * PANEL];
  }
};
template <> struct EmbedRow<Bf16> {
  LLMC_INLINE void run(const Table&, const uint8_t* panel, int64_t n, int k, float* out) {
    const uint16_t* w = (const uint16_t*)panel + n % PANEL * 2;
    for (int i = 0; i < k; ++i) out[i] = from_bf16(w[(int64_t)(i / 2) * PANEL * 2 + i % 2]);
  }
};
template <int G> struct EmbedRow<Int8<G>> {
  LLMC_INLINE void run(const Table& t, const uint8_t* panel, int64_t n, int k, float* out) {
    const uint8_t* w = panel + n % PANEL * 4;
    const float scale = ((const float*)t.scales)[n];
    for (int i = 0; i < k; ++i) out[i] = (float)((int)w[(int64_t)(i / 4) * PANEL * 4 + i % 4] - 128) * scale;
  }
};

}  // namespace llmc
