// Low-bit weights with bf16 inputs: codes become bf16 in a buffer, exactly, some columns at a time, which bf16 tiles
// then multiply all rows with.
//
// The sums are those of Bf16 (tile.h), from zero in each group of columns that share a weight scale; then
//   scales of groups        total = fma(sum, weight scale, total) over ascending groups
//   a scale for the row     sum * weight scale at the end
// An int8 offset is added to the code first: both together are whole numbers that bf16 holds.
#pragma once
#include "quant.h"
#include "tile.h"

namespace llmc {

constexpr int WIDENED_COLUMNS = 128; // at most, of a buffer

// R rows times 2 P vectors of bf16 pairs, `length` columns, added to `sum` or, at the first, to zero.
struct WidenedTile {
  const uint8_t *weights, *rows;
  int64_t panel, stride, length;
  bool first;
  float* sum;      // [rows][OUT_STRIDE]
  float* scratch;  // [2][TILE_ROWS][OUT_STRIDE]
};

template <int R, int P> struct WidenedKernel {
  static constexpr int WIDTH = 2 * P;

#if defined(LLMC_BF16) && !defined(LLMC_AMX)
  LLMC_INLINE void run(const WidenedTile& t) {
    __m512 acc[R][WIDTH];
    LLMC_ROWS LLMC_VECTORS acc[r][v] = t.first ? _mm512_setzero_ps() : load(t.sum + r * OUT_STRIDE + v * 16).p[0];
    const uint8_t *w = t.weights, *x = t.rows;
    for (int64_t k = 0; k < t.length; k += 2, w += PANEL * 4, x += 4) {
      __m512bh b[WIDTH];
      LLMC_VECTORS b[v] = (__m512bh)_mm512_load_si512(w + (v / 2) * t.panel + (v % 2) * 64);
      LLMC_ROWS {
        const __m512bh a = (__m512bh)broadcast_4_bytes(x + r * t.stride).p[0];
        LLMC_VECTORS acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b[v], a);
      }
    }
    LLMC_ROWS LLMC_VECTORS _mm512_storeu_ps(t.sum + r * OUT_STRIDE + v * 16, acc[r][v]);
  }
#else
  template <int ODD> LLMC_INLINE void chain(const uint8_t* w, int64_t panel, const float* x, f32x16 (&acc)[R][WIDTH]) {
    LLMC_ROWS LLMC_VECTORS acc[r][v] = splat(0.0f);
    for (int j = 0; j < 16; ++j, w += PANEL * 4, x += 2) {
      f32x16 b[WIDTH];
      LLMC_VECTORS {
        const i32x16 pairs = load_i32(w + (v / 2) * panel + (v % 2) * 64);
        b[v] = ODD ? pair_odd(pairs) : pair_even(pairs);
      }
      LLMC_ROWS {
        const f32x16 a = splat(x[r * 32 + ODD]);
        LLMC_VECTORS acc[r][v] = fma(b[v], a, acc[r][v]);
      }
      load_again();
    }
  }

  LLMC_INLINE void run(const WidenedTile& t) {
    float *x = t.scratch, *even = t.scratch + TILE_ROWS * OUT_STRIDE;
    const uint8_t *w = t.weights, *rows = t.rows;
    for (int64_t k = 0; k < t.length; k += 32, w += 16 * PANEL * 4, rows += 64) {
      LLMC_ROWS {
        const uint16_t* a = (const uint16_t*)(rows + r * t.stride);
        store(x + r * 32, load_bf16(a));
        store(x + r * 32 + 16, load_bf16(a + 16));
      }
      f32x16 acc[R][WIDTH];
      chain<0>(w, t.panel, x, acc);
      LLMC_ROWS LLMC_VECTORS store(even + r * OUT_STRIDE + v * 16, acc[r][v]);
      chain<1>(w, t.panel, x, acc);
      LLMC_ROWS LLMC_VECTORS {
        float* o = t.sum + r * OUT_STRIDE + v * 16;
        const f32x16 total = t.first && k == 0 ? splat(0.0f) : load(o);
        store(o, total + (load(even + r * OUT_STRIDE + v * 16) + acc[r][v]));
      }
    }
  }
#endif
};
template <int R, int P> __attribute__((noinline)) void widened_tile(const WidenedTile& t) {
  WidenedKernel<R, P>::run(t);
}

// Codes of 16 columns of a panel as bf16 pairs, COLUMNS columns of the input at a time.
template <class C> struct Widen {
  static constexpr int COLUMNS = STEP<C>, PAIRS = COLUMNS / 2;

  LLMC_INLINE i32x16 pair(f32x16 even, f32x16 odd) {
    const i32x16 low = and_i32(shift_right<16>(bits(even)), splat_i32(0xffff));
    return or_i32(low, and_i32(bits(odd), splat_i32((int32_t)0xffff0000u)));
  }
  template <int J> LLMC_INLINE f32x16 byte(i32x16 biased, i32x16 shift) {
    i32x16 code = biased;
    if constexpr (J > 0) code = shift_right<8 * J>(code);
    const f32x16 value = to_f32(add_i32(and_i32(code, splat_i32(255)), shift));
    return C::VALUE_SCALE == 1.0f ? value : value * C::VALUE_SCALE;
  }
  // `shift`: int8 offsets of the columns less the bias.
  LLMC_INLINE void run(const uint8_t* w, i32x16 shift, i32x16 (&out)[PAIRS]) {
    i32x16 bytes[COLUMNS / 4];
    load_codes<C>(w, bytes);
    LLMC_UNROLL for (int i = 0; i < COLUMNS / 4; ++i) {
      out[2 * i] = pair(byte<0>(bytes[i], shift), byte<1>(bytes[i], shift));
      out[2 * i + 1] = pair(byte<2>(bytes[i], shift), byte<3>(bytes[i], shift));
    }
  }
};
template <> struct Widen<E4M3> {
  static constexpr int COLUMNS = 2, PAIRS = 1;
  LLMC_INLINE void run(const uint8_t* w, i32x16, i32x16 (&out)[PAIRS]) { out[0] = e4m3_pairs(w); }
};

// Where weights, scales and offsets of columns lie, and what offsets and bias come to.
template <class F> struct WidenedPlaces {
  using C = typename F::Codes;
  static constexpr int GROUP = F::WEIGHT_GROUP, VECTOR_BYTES = 16 * Widen<C>::COLUMNS * C::BITS / 8;

  const QuantBlock t;  // a copy: results are stored through pointers that could be to the original
  const int64_t panel = F::panel_bytes(t.k), scale_panel = F::groups(t.k) * PANEL;

  LLMC_METHOD const uint8_t* weights(int64_t k, int v) const {
    return t.weights + k * PANEL * C::BITS / 8 + (v / 2) * panel + (v % 2) * VECTOR_BYTES;
  }
  LLMC_METHOD int64_t scale_at(int64_t k, int v) const {
    return (GROUP ? k / (GROUP ? GROUP : 1) : 0) * PANEL + (v / 2) * scale_panel + (v % 2) * 16;
  }
  LLMC_METHOD f32x16 scale(int64_t k, int v) const {
    return load_16((const typename F::Scale*)t.scales + scale_at(k, v));
  }
  LLMC_METHOD i32x16 shift(int64_t k, int v) const {
    i32x16 s = splat_i32(0);
    if constexpr (!SAME<C, E4M3>) s = splat_i32(-C::BIAS);
    if constexpr (F::HAS_OFFSETS) s = add_i32(s, load_16_i32((const int8_t*)t.offsets + scale_at(k, v)));
    return s;
  }
};

#if defined(LLMC_BF16) && !defined(LLMC_AMX)
// A few rows, whose weights need no buffer: the same sums from registers.
template <class F, int R, int P> __attribute__((noinline)) void widened_direct(const QuantBlock& b) {
  using W = Widen<typename F::Codes>;
  constexpr int WIDTH = 2 * P, GROUP = F::WEIGHT_GROUP;
  const WidenedPlaces<F> at{b};
  const int64_t stride = F::row_bytes(b.k), padded = F::pad_k(b.k), length = GROUP ? GROUP : padded;
  f32x16 total[R][WIDTH];
  LLMC_ROWS LLMC_VECTORS total[r][v] = splat(0.0f);
  for (int64_t group = 0; group < padded; group += length) {
    const int64_t end = padded - group < length ? padded : group + length;
    __m512 sum[R][WIDTH];
    LLMC_ROWS LLMC_VECTORS sum[r][v] = _mm512_setzero_ps();
    const uint8_t* x = at.t.rows + 2 * group;
    for (int64_t k = group; k < end; k += W::COLUMNS, x += 2 * W::COLUMNS) LLMC_VECTORS {
      i32x16 pairs[W::PAIRS];
      const uint8_t* w = at.weights(k, v);
      W::run(w, at.shift(group, v), pairs);
      if (v % 2 == 0 || at.VECTOR_BYTES == 64) prefetch(w + at.t.ahead);
      LLMC_UNROLL for (int j = 0; j < W::PAIRS; ++j) LLMC_ROWS {
        const __m512bh a = (__m512bh)broadcast_4_bytes(x + r * stride + 4 * j).p[0];
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)pairs[j].p[0], a);
      }
    }
    LLMC_VECTORS {
      const f32x16 scale = at.scale(group, v);
      LLMC_ROWS {
        const f32x16 s{{sum[r][v]}};
        total[r][v] = GROUP ? fma(s, scale, total[r][v]) : s * scale;
      }
    }
  }
  LLMC_ROWS LLMC_VECTORS store(at.t.out + r * OUT_STRIDE + v * 16, total[r][v]);
}
constexpr int DIRECT_ROWS = 2;
#else
template <class F, int R, int P> void widened_direct(const QuantBlock&);
constexpr int DIRECT_ROWS = 0;  // sums go through memory all the same
#endif

template <class C, int G, class S, class Z, int P> struct BlockKernel<Quant<C, G, S, Z, Bf16>, P> {
  using F = Quant<C, G, S, Z, Bf16>;
  static constexpr int GROUP = G, MOST = WIDENED_COLUMNS;
  static constexpr int STRIP = GROUP == 32 ? 32 : GROUP % MOST == 0 ? MOST : 64;  // columns of a buffer, of one group
  static constexpr int64_t STRIP_PANEL = STRIP * PANEL * 2;
  static constexpr int ROWS = 96;  // whole tiles

  const QuantBlock& t;
  const WidenedPlaces<F> at{t};

  LLMC_INLINE void run(const QuantBlock& b) {
    if constexpr (DIRECT_ROWS > 0)
      if (b.num_rows <= DIRECT_ROWS)
        return with_rows<1, DIRECT_ROWS>(b.num_rows, [&](auto r) __attribute__((always_inline)) {
          widened_direct<F, decltype(r)::value, P>(b);
        });
    BlockKernel{b}.multiply_all();
  }

  LLMC_METHOD void widen(int64_t k, int64_t columns, uint8_t* buffer) const {
    using W = Widen<C>;
    LLMC_VECTORS {
      const i32x16 shift = at.shift(k, v);
      const uint8_t* w = at.weights(k, v);
      uint8_t* out = buffer + (v / 2) * STRIP_PANEL + (v % 2) * 64;
      for (int64_t i = 0; i < columns; i += W::COLUMNS, w += 2 * at.VECTOR_BYTES) {
        i32x16 pairs[W::PAIRS];
        W::run(w, shift, pairs);
        prefetch(w + t.ahead);
        LLMC_UNROLL for (int j = 0; j < W::PAIRS; ++j, out += PANEL * 4) store_i32(out, pairs[j]);
      }
    }
  }

  LLMC_METHOD void multiply(int64_t k, int64_t columns, const uint8_t* buffer, bool first, float* sum) const {
    alignas(64) float scratch[2 * TILE_ROWS * OUT_STRIDE];
    const int64_t stride = F::row_bytes(t.k);
    for (int row = 0, take; row < t.num_rows; row += take) {
      take = even_rows(t.num_rows - row, TILE_ROWS);
      const uint8_t* x = t.rows + row * stride + 2 * k;
      const WidenedTile tile{buffer, x, STRIP_PANEL, stride, columns, first, sum + row * OUT_STRIDE, scratch};
      with_rows<1, TILE_ROWS>(take, [&](auto r) __attribute__((always_inline)) {
        widened_tile<decltype(r)::value, P>(tile);
      });
    }
  }

  LLMC_METHOD void apply(int64_t k, const float* sum) const {
    LLMC_VECTORS {
      const f32x16 by = at.scale(k, v);
      for (int r = 0; r < t.num_rows; ++r) {
        const int i = r * OUT_STRIDE + v * 16;
        if (GROUP == 0) store(t.out + i, load(sum + i) * by);
        else store(t.out + i, fma(load(sum + i), by, k == 0 ? splat(0.0f) : load(t.out + i)));
      }
    }
  }

  inline void multiply_all() const {
    alignas(64) uint8_t buffer[P * STRIP_PANEL];
    alignas(64) float sum[ROWS * OUT_STRIDE];
    const int64_t padded = F::pad_k(t.k), length = GROUP ? GROUP : padded;
    for (int64_t group = 0; group < padded; group += length) {
      const int64_t end = padded - group < length ? padded : group + length;
      for (int64_t k = group; k < end; k += STRIP) {
        const int64_t columns = end - k < STRIP ? end - k : STRIP;
        widen(k, columns, buffer);
        multiply(k, columns, buffer, k == group, sum);
      }
      apply(group, sum);
    }
  }
};

}  // namespace llmc
