// Tiles of low-bit weights and int8 inputs: exact inside a segment of columns, then the segment's scales.
//
// A segment is as many columns as share both scales. Its sum `acc` of code * q is exact in int32, in this order:
//   a scale for the row     total = fma(acc, input scale, total) over ascending segments; at the end total * weight scale
//   scales of groups        total = fma(acc, weight scale * input scale, total)
//   offsets, after either   total = fma(offset, input scale * sum of q, total); int8 ones are times the weight scale
// so every instruction set gives the same bits (where it has fma).
//
// limits: four-bit codes without VNNI are summed in 16 bits, PAIR_STEPS steps of four columns at a time: a biased byte
// is at most LARGEST, an input at most 127 (quantize_row), so 2 * LARGEST * 127 * PAIR_STEPS stays below 2^15.
#pragma once
#include "quant.h"
#include "tile.h"

namespace llmc {

#if (defined(LLMC_AVX512) || defined(LLMC_AVX2)) && !defined(LLMC_VNNI)
template <class C> constexpr int PAIR_STEPS = C::BITS == 4 ? 32767 / (2 * C::LARGEST * 127) / 2 * 2 : 0;
LLMC_INLINE i32x16 add_pairs(i32x16 acc, i32x16 u, i32x16 s) {
  i32x16 r; LLMC_PARTS r.p[i] = part_add_i16(acc.p[i], part_pairs(u.p[i], s.p[i])); return r;
}
LLMC_INLINE i32x16 widen_pairs(i32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_widen_pairs(a.p[i]); return r; }
#else
template <class C> constexpr int PAIR_STEPS = 0;
#endif

constexpr int both(int a, int b) { return a == 0 ? b : b == 0 ? a : a < b ? a : b; }

template <class F, int R, int P> struct CodesTile {
  using C = typename F::Codes;
  using O = typename F::Operand;
  static constexpr int WIDTH = 2 * P, GROUP = F::WEIGHT_GROUP, STEPS = STEP<C> / 4;
  static constexpr int SEGMENT = both(GROUP, O::GROUP);  // columns; 0: the row
  static constexpr bool SUMS_STORED = SEGMENT == O::GROUP;
  static constexpr int64_t VECTOR_BYTES = 64, LANES_BYTES = 2 * VECTOR_BYTES;  // of a panel's step: 32 lanes

  const Tile& t;
  const int64_t panel = F::panel_bytes(t.k), stride = O::row_bytes(t.k), padded = F::pad_k(t.k);
  const int64_t scale_panel = F::groups(t.k) * PANEL;

  LLMC_METHOD const uint8_t* weights(int64_t k, int v) const {
    return t.weights + k / STEP<C> * LANES_BYTES + (v / 2) * panel + (v % 2) * VECTOR_BYTES;
  }
  LLMC_METHOD int64_t scale_at(int64_t k, int v) const {
    return (GROUP ? k / (GROUP ? GROUP : 1) : 0) * PANEL + (v / 2) * scale_panel + (v % 2) * 16;
  }
  LLMC_METHOD f32x16 weight_scale(int64_t k, int v) const {
    const f32x16 scale = load_16((const typename F::Scale*)t.scales + scale_at(k, v));
    return C::VALUE_SCALE == 1.0f ? scale : scale * C::VALUE_SCALE;
  }
  LLMC_METHOD int64_t input_group(int64_t k) const { return O::GROUP ? k / (O::GROUP ? O::GROUP : 1) : 0; }
  LLMC_METHOD float input_scale(int64_t k, int r) const {
    return O::scales(t.rows + r * stride, t.k)[input_group(k)];
  }
  // Of the q of one row and segment.
  LLMC_METHOD int32_t input_sum(int64_t k, int64_t length, int r) const {
    const uint8_t* row = t.rows + r * stride;
    if (SUMS_STORED) return -(O::zeros(row, t.k)[input_group(k)] >> 7);
    return sum_s8((const int8_t*)row + k, length);
  }

  LLMC_METHOD void step(const uint8_t* const (&w)[WIDTH], int64_t at, const uint8_t* x, i32x16 (&acc)[R][WIDTH]) const {
    i32x16 b[WIDTH][STEPS];
    LLMC_VECTORS {
      load_codes<C>(w[v] + at, b[v]);
      prefetch(w[v] + at + t.ahead);
    }
    LLMC_ROWS LLMC_UNROLL for (int s = 0; s < STEPS; ++s) {
      const i32x16 a = broadcast_4_bytes(x + r * stride + 4 * s);
      LLMC_VECTORS acc[r][v] = dot_i8(acc[r][v], b[v][s], a);
    }
  }

  LLMC_METHOD void sums(int64_t k, int64_t length, i32x16 (&acc)[R][WIDTH]) const {
    LLMC_ROWS {
      const i32x16 start = splat_i32(C::BIAS ? -C::BIAS * input_sum(k, length, r) : 0);
      LLMC_VECTORS acc[r][v] = start;
    }
    const uint8_t *x = t.rows + k, *w[WIDTH];
    LLMC_VECTORS w[v] = weights(k, v);
    for (int64_t i = 0; i < length; i += STEP<C>) step(w, i / STEP<C> * LANES_BYTES, x + i, acc);
  }

  // Adds a segment to the totals.
  LLMC_METHOD void add(int64_t k, int64_t length, const i32x16 (&acc)[R][WIDTH]) const {
    LLMC_VECTORS {
      const f32x16 scale = GROUP ? weight_scale(k, v) : splat(1.0f);
      LLMC_ROWS {
        float* out = t.out + r * OUT_STRIDE + v * 16;
        const float input = input_scale(k, r);
        f32x16 total = k == 0 ? splat(0.0f) : load(out);
        total = fma(to_f32(acc[r][v]), GROUP ? scale * input : splat(input), total);
        if constexpr (GROUP && F::HAS_OFFSETS) total = add_offset(total, k, length, v, r, scale);
        store(out, total);
      }
    }
  }
  LLMC_METHOD f32x16 add_offset(f32x16 total, int64_t k, int64_t length, int v, int r, f32x16 scale) const {
    const f32x16 offset = load_16((const typename F::Offset*)t.offsets + scale_at(k, v));
    return fma(F::IN_STEPS ? offset * scale : offset, splat(input_scale(k, r) * (float)input_sum(k, length, r)), total);
  }

  LLMC_METHOD int64_t segment_length(int64_t k) const {
    constexpr bool WHOLE = SEGMENT != 0 && (O::GROUP != 0 || SEGMENT <= 64);  // columns are padded to such
    if (WHOLE) return SEGMENT;
    return SEGMENT == 0 || padded - k < SEGMENT ? padded - k : SEGMENT;
  }

  LLMC_METHOD void run() const {
    for (int64_t k = 0; k < padded;) {
      const int64_t length = segment_length(k);
      i32x16 acc[R][WIDTH];
      sums(k, length, acc);
      add(k, length, acc);
      k += length;
    }
    if constexpr (GROUP == 0) scale_rows();
  }

  LLMC_METHOD void scale_rows() const {
    LLMC_VECTORS {
      const f32x16 scale = weight_scale(0, v);
      LLMC_ROWS {
        float* out = t.out + r * OUT_STRIDE + v * 16;
        f32x16 total = load(out) * scale;
        if constexpr (F::HAS_OFFSETS)
          for (int64_t k = 0; k < padded; k += segment_length(k))
            total = add_offset(total, k, segment_length(k), v, r, scale);
        store(out, total);
      }
    }
  }
};

template <class C, int G, class S, class Z, int A, int R, int P>
struct TileKernel<Quant<C, G, S, Z, Int8<A>>, R, P> {
  LLMC_INLINE void run(const Tile& t) { CodesTile<Quant<C, G, S, Z, Int8<A>>, R, P>{t}.run(); }
};

}  // namespace llmc
