// Tiles of low-bit weights and int8 inputs: exact inside a segment of columns, then the segment's scales.
//
// A segment is as many columns as share both scales. Its sum `acc` of code * q is exact in int32, in this order:
//   a scale for the row     total = fma(acc, input scale, total) over ascending segments; at the end total * weight scale
//   scales of groups        total = fma(acc, weight scale * input scale, total)
//   offsets, after either   total = fma(offset, input scale * sum of q, total); int8 ones are times the weight scale
// so every instruction set gives the same bits (where it has fma).
//
// limits: four-bit codes without VNNI are summed in 16 bits, PAIR_COLUMNS columns at a time: a biased byte is at most
// LARGEST, an input at most 127 (quantize_row), and each 16-bit sum adds two of their products for every four columns.
#pragma once
#include "quant.h"
#include "tile.h"

namespace llmc {

#if (defined(LLMC_AVX512) || defined(LLMC_AVX2)) && !defined(LLMC_VNNI)
// A multiple of eight columns; 0 where products are too large for it.
template <class C> constexpr int PAIR_COLUMNS = 32767 / (2 * C::LARGEST * 127) / 2 * 8;
LLMC_INLINE i32x16 add_pairs(i32x16 acc, i32x16 u, i32x16 s) {
  i32x16 r; LLMC_PARTS r.p[i] = part_add_i16(acc.p[i], part_pairs(u.p[i], s.p[i])); return r;
}
LLMC_INLINE i32x16 widen_pairs(i32x16 a) { i32x16 r; LLMC_PARTS r.p[i] = part_widen_pairs(a.p[i]); return r; }
#else
template <class C> constexpr int PAIR_COLUMNS = 0;
LLMC_INLINE i32x16 add_pairs(i32x16 acc, i32x16, i32x16) { return acc; }
LLMC_INLINE i32x16 widen_pairs(i32x16 a) { return a; }
#endif

constexpr int both(int a, int b) { return a == 0 ? b : b == 0 ? a : a < b ? a : b; }
template <class F> constexpr int SEGMENT = both(F::WEIGHT_GROUP, F::Operand::GROUP);  // columns; 0: the row

// Rows of a tile: unpacked codes take registers.
#if defined(LLMC_AVX512)
template <class C> constexpr int CODES_ROWS = 4;
#elif defined(LLMC_AVX2)
template <class C> constexpr int CODES_ROWS = C::TABLE && PAIR_COLUMNS<C> == 0 ? 1 : TILE_ROWS;
#else
template <class C> constexpr int CODES_ROWS = TILE_ROWS;
#endif

template <class F, int R, int P> struct CodesKernel {
  using C = typename F::Codes;
  using O = typename F::Operand;
  static constexpr int WIDTH = 2 * P, GROUP = F::WEIGHT_GROUP, STEPS = STEP<C> / 4;
  static constexpr bool SUMS_STORED = SEGMENT<F> == O::GROUP;
  static constexpr int64_t VECTOR_BYTES = 64, LANES_BYTES = 2 * VECTOR_BYTES;  // of a panel's step: 32 lanes

  const QuantBlock t;  // a copy: results are stored through pointers that could be to the original
  int32_t* const spare;  // [R][OUT_STRIDE], for sums of pairs
  const int64_t panel = F::panel_bytes(t.k), stride = O::row_bytes(t.k), padded = F::pad_k(t.k);
  const int64_t scale_panel = F::groups(t.k) * PANEL;
  const int64_t scales_ahead = GROUP ? t.ahead * 8 / C::BITS / (GROUP ? GROUP : 1) : 0;  // numbers, as far as weights
  const int64_t zeros = padded + 4 * O::groups(t.k);

  LLMC_METHOD int64_t scale_at(int64_t k, int v) const {
    return (GROUP ? k / (GROUP ? GROUP : 1) : 0) * PANEL + (v / 2) * scale_panel + (v % 2) * 16;
  }
  LLMC_METHOD f32x16 weight_scale(int64_t k, int v) const {
    const f32x16 scale = load_16((const typename F::Scale*)t.scales + scale_at(k, v));
    return C::VALUE_SCALE == 1.0f ? scale : scale * C::VALUE_SCALE;
  }
  LLMC_METHOD int64_t input_group(int64_t k) const { return O::GROUP ? k / (O::GROUP ? O::GROUP : 1) : 0; }
  LLMC_METHOD float input_scale(int64_t k, int r) const {
    return *(const float*)(t.rows + padded + 4 * input_group(k) + r * stride);
  }
  // Of the q of one row and segment.
  LLMC_METHOD int32_t input_sum(int64_t k, int64_t length, int r) const {
    if (SUMS_STORED) return -(*(const int32_t*)(t.rows + zeros + 4 * input_group(k) + r * stride) >> 7);
    return sum_s8((const int8_t*)t.rows + r * stride + k, length);
  }
  LLMC_METHOD i32x16 start(int64_t k, int64_t length, int r) const {
    return splat_i32(C::BIAS ? -C::BIAS * input_sum(k, length, r) : 0);
  }

  // STEP<C> columns; w and x: their first.
  template <bool PAIRS>
  LLMC_METHOD void step(const uint8_t* w, const uint8_t* x, int64_t ahead, i32x16 (&acc)[R][WIDTH]) const {
#if defined(LLMC_AVX512) && defined(LLMC_VNNI)
    i32x16 b[WIDTH][STEPS];
    LLMC_VECTORS load_and_fetch(w, v, ahead, b[v]);
    LLMC_UNROLL for (int s = 0; s < STEPS; ++s) LLMC_ROWS {
      const i32x16 a = broadcast_4_bytes(x + r * stride + 4 * s);
      LLMC_VECTORS acc[r][v] = dot_i8(acc[r][v], b[v][s], a);
    }
    load_again();  // in unrolled steps, operands come when they are needed
    LLMC_ROWS LLMC_VECTORS finish_here(acc[r][v]);
#else
    // Products need registers: one vector of weights at a time.
    LLMC_VECTORS LLMC_UNROLL for (int s = 0; s < STEPS; ++s) {
      i32x16 b[STEPS];
      load_and_fetch(w, v, ahead, b);
      LLMC_ROWS {
        const i32x16 a = broadcast_4_bytes(x + r * stride + 4 * s);
        acc[r][v] = PAIRS ? add_pairs(acc[r][v], b[s], a) : dot_i8(acc[r][v], b[s], a);
      }
      if (!PAIRS || s + 1 == STEPS) load_again();
    }
#endif
  }
  LLMC_METHOD void load_and_fetch(const uint8_t* w, int v, int64_t ahead, i32x16 (&b)[STEPS]) const {
    const uint8_t* p = w + (v / 2) * panel + (v % 2) * VECTOR_BYTES;
    load_codes<C>(p, b);
    prefetch(p + ahead);
  }

  template <bool PAIRS>
  LLMC_METHOD void steps(int64_t k, int64_t length, i32x16 (&acc)[R][WIDTH]) const {
    const uint8_t *w = t.weights + k / STEP<C> * LANES_BYTES, *x = t.rows + k;
    const int64_t ahead = t.fetch_from <= k && k < t.fetch_to ? t.ahead : 0;
    for (int64_t i = 0; i < length; i += STEP<C>, w += LANES_BYTES, x += STEP<C>) step<PAIRS>(w, x, ahead, acc);
    LLMC_ROWS LLMC_VECTORS finish_here(acc[r][v]);
  }

  // Adds a segment to the totals.
  LLMC_METHOD void segment(int64_t k, int64_t length) const {
    i32x16 acc[R][WIDTH];
    LLMC_ROWS {
      const i32x16 first = start(k, length, r);
      LLMC_VECTORS acc[r][v] = first;
    }
    steps<false>(k, length, acc);
    load_again();  // totals in memory leave their registers to sums
    add(k, length, [&](int r, int v) __attribute__((always_inline)) { return acc[r][v]; });
  }

  // The same by sums of 16 bits, which are widened before they could overflow.
  LLMC_METHOD void segment_of_pairs(int64_t k, int64_t length) const {
    for (int64_t i = 0; i < length; i += PAIR_COLUMNS<C>) {
      const int64_t columns = length - i < PAIR_COLUMNS<C> ? length - i : PAIR_COLUMNS<C>;
      i32x16 acc[R][WIDTH];
      LLMC_ROWS LLMC_VECTORS acc[r][v] = splat_i32(0);
      steps<true>(k + i, columns, acc);
      load_again();
      const auto sum = [&](int r, int v) __attribute__((always_inline)) {
        const i32x16 before = i == 0 ? start(k, length, r) : load_i32(spare + r * OUT_STRIDE + v * 16);
        return add_i32(before, widen_pairs(acc[r][v]));
      };
      if (i + columns == length) add(k, length, sum);
      else LLMC_ROWS LLMC_VECTORS store_i32(spare + r * OUT_STRIDE + v * 16, sum(r, v));
    }
  }

  template <class Sum> LLMC_METHOD void add(int64_t k, int64_t length, Sum sum) const {
    LLMC_VECTORS {
      const f32x16 scale = GROUP ? weight_scale(k, v) : splat(1.0f);
      if (GROUP) prefetch((const typename F::Scale*)t.scales + scale_at(k, v) + scales_ahead);
      LLMC_ROWS {
        float* out = t.out + r * OUT_STRIDE + v * 16;
        const float input = input_scale(k, r);
        f32x16 total = fma(to_f32(sum(r, v)), GROUP ? scale * input : splat(input), load(out));
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
    constexpr int LENGTH = SEGMENT<F>;
    constexpr bool WHOLE = LENGTH != 0 && (O::GROUP != 0 || LENGTH <= 64);  // columns are padded to such
    if (WHOLE) return LENGTH;
    return LENGTH == 0 || padded - k < LENGTH ? padded - k : LENGTH;
  }

  LLMC_METHOD void run() const {
    LLMC_ROWS LLMC_VECTORS store(t.out + r * OUT_STRIDE + v * 16, splat(0.0f));
    for (int64_t k = 0; k < padded;) {
      const int64_t length = segment_length(k);
      if constexpr (PAIR_COLUMNS<C> > 0) segment_of_pairs(k, length);
      else segment(k, length);
      k += length;
    }
    if (GROUP == 0) scale_rows();
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
template <class F, int R, int P> __attribute__((noinline)) void codes_tile(const QuantBlock& b, int32_t* spare) {
  CodesKernel<F, R, P>{b, spare}.run();
}

template <class C, int G, class S, class Z, int A, int P> struct BlockKernel<Quant<C, G, S, Z, Int8<A>>, P> {
  static constexpr int ROWS = CODES_ROWS<C>;

  LLMC_INLINE void run(const QuantBlock& b) {
    alignas(64) int32_t spare[ROWS * OUT_STRIDE];
    with_rows<1, ROWS>(b.num_rows, [&](auto r) __attribute__((always_inline)) {
      codes_tile<Quant<C, G, S, Z, Int8<A>>, decltype(r)::value, P>(b, spare);
    });
  }
};

}  // namespace llmc
