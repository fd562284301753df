// Micro-kernels of linear on AVX2: up to 4 operand rows times the 32 columns of a panel. One row takes all of them at
// once; more rows take 16 after the other 16, some columns of k at a time, so that the weights come from L1 the second
// time and 4 rows x 2 ymm of sums stay in registers.
//
// numerics: the bits of tile.h. Operand rows are widened first, a block at a time: bf16 to f32; int8 to 16-bit pairs
//   (k0, k2) and (k1, k3), which vpmaddwd multiplies with what `and` and a shift leave of four weights. Two products of
//   255 * 127 fit int32: nothing saturates, unlike vpmaddubsw of the bytes themselves (2 * 255 * 127 > 32,767).
// limits: the compiler must neither move loads over `load_again` nor reassociate `add_in_place`: it would spill.
#pragma once
#include "tile.h"

namespace llmc {

// The vectors of columns that R rows take at a time.
template <int R> constexpr int AVX2_VECTORS = R == 1 ? 4 : 2;

#define LLMC_YMM LLMC_UNROLL for (int v = 0; v < V; ++v)
#define LLMC_STEPS _Pragma("GCC unroll 4") for

LLMC_INLINE vi ymm_at(const uint8_t* p) { return _mm256_load_si256((const vi*)p); }
LLMC_INLINE void add_in_place(vi& sum, vi x) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x)); }
LLMC_INLINE vi opaque(vi x) { asm("" : "+x"(x)); return x; }

template <int R, int P> struct TileKernel<F32, R, P> {
  static constexpr int V = AVX2_VECTORS<R>, BLOCK_K = 64;

  // Adds `length` k of 8 * V columns to `out`, or to zero.
  LLMC_INLINE void part(const float* w, const float* x, int64_t stride, int64_t length, int64_t ahead, bool first,
                        float* out) {
    vf acc[R][V];
    LLMC_ROWS LLMC_YMM acc[r][v] = first ? _mm256_setzero_ps() : _mm256_load_ps(out + r * OUT_STRIDE + 8 * v);
    LLMC_STEPS (int64_t k = 0; k < length; ++k) {
      vf b[V];
      LLMC_UNROLL for (int line = 0; line < V / 2; ++line) prefetch((const char*)(w + k * PANEL + 16 * line) + ahead);
      LLMC_YMM b[v] = _mm256_load_ps(w + k * PANEL + 8 * v);
      LLMC_ROWS {
        const vf a = _mm256_broadcast_ss(x + r * stride + k);
        LLMC_YMM acc[r][v] = _mm256_fmadd_ps(b[v], a, acc[r][v]);
      }
    }
    LLMC_ROWS LLMC_YMM _mm256_store_ps(out + r * OUT_STRIDE + 8 * v, acc[r][v]);
  }

  LLMC_INLINE void run(const Tile& t) {
    const int64_t stride = F32::row_bytes(t.k) / 4, ahead = t.ahead, end = t.k;
    const float *w = (const float*)t.weights, *x = (const float*)t.rows;
    for (int64_t k = 0; k < end; k += BLOCK_K, w += BLOCK_K * PANEL, x += BLOCK_K)
      for (int at = 0; at < PANEL; at += 8 * V)
        part(w + at, x, stride, end - k < BLOCK_K ? end - k : BLOCK_K, ahead, k == 0, t.out + at);
  }
};

template <int R, int P> struct TileKernel<Bf16, R, P> {
  static constexpr int V = AVX2_VECTORS<R>;
  static constexpr bool BOTH = R <= 2;  // chains at once: few rows wait for sums, more lack registers

  template <int ODD> LLMC_INLINE void step(const uint8_t* w, const float* x, vi mask, vf (&acc)[R][V]) {
    LLMC_UNROLL for (int at = 0; at < V; at += 2) {
      vf b[2];
      LLMC_UNROLL for (int v = 0; v < 2; ++v) {
        const vi pairs = ymm_at(w + 32 * (at + v));
        b[v] = _mm256_castsi256_ps(ODD ? _mm256_and_si256(mask, pairs) : _mm256_slli_epi32(pairs, 16));
      }
      LLMC_ROWS {
        const vf a = _mm256_broadcast_ss(x + r * 32 + ODD);
        LLMC_UNROLL for (int v = 0; v < 2; ++v) acc[r][at + v] = _mm256_fmadd_ps(b[v], a, acc[r][at + v]);
      }
      load_again();
    }
  }
  LLMC_INLINE void fetch(const uint8_t* p) {
    LLMC_UNROLL for (int line = 0; line < V / 2; ++line) prefetch(p + 64 * line);
  }
  LLMC_INLINE void zero(vf (&acc)[R][V]) { LLMC_ROWS LLMC_YMM acc[r][v] = _mm256_setzero_ps(); }

  // 32 k of 8 * V columns: sums of the even ones and of the odd ones, then both to `out`.
  // `even`: scratch as large as `out`.
  LLMC_INLINE void part(const uint8_t* w, const float* x, int64_t ahead, vi mask, bool first, float* even, float* out) {
    vf acc[R][V];
    zero(acc);
    if constexpr (BOTH) {
      vf odd[R][V];
      zero(odd);
      LLMC_STEPS (int j = 0; j < 16; ++j) {
        fetch(w + 128 * j + ahead);
        step<0>(w + 128 * j, x + 2 * j, mask, acc);
        step<1>(w + 128 * j, x + 2 * j, mask, odd);
      }
      LLMC_ROWS LLMC_YMM acc[r][v] = _mm256_add_ps(acc[r][v], odd[r][v]);
    } else {
      LLMC_STEPS (int j = 0; j < 16; ++j) {
        fetch(w + 128 * j + ahead);
        step<0>(w + 128 * j, x + 2 * j, mask, acc);
      }
      LLMC_ROWS LLMC_YMM _mm256_store_ps(even + r * OUT_STRIDE + 8 * v, acc[r][v]);
      zero(acc);
      LLMC_STEPS (int j = 0; j < 16; ++j) step<1>(w + 128 * j, x + 2 * j, mask, acc);
      LLMC_ROWS LLMC_YMM acc[r][v] = _mm256_add_ps(_mm256_load_ps(even + r * OUT_STRIDE + 8 * v), acc[r][v]);
    }
    LLMC_ROWS LLMC_YMM {
      float* o = out + r * OUT_STRIDE + 8 * v;
      _mm256_store_ps(o, _mm256_add_ps(first ? _mm256_setzero_ps() : _mm256_load_ps(o), acc[r][v]));
    }
  }

  LLMC_INLINE void run(const Tile& t) {
    const int64_t stride = Bf16::row_bytes(t.k), padded = Bf16::pad_k(t.k), ahead = t.ahead;
    const uint8_t *w = t.weights, *rows = t.rows;
    float *x = t.scratch, *even = t.scratch + TILE_MOST_ROWS * OUT_STRIDE, *out = t.out;
    const vi mask = opaque(_mm256_set1_epi32((int32_t)0xffff0000u));
    for (int64_t k = 0; k < padded; k += 32, w += 16 * PANEL * 4, rows += 64) {
      LLMC_ROWS LLMC_UNROLL for (int i = 0; i < 32; i += 16)
        store(x + r * 32 + i, load_bf16((const uint16_t*)(rows + r * stride) + i));
      for (int at = 0; at < PANEL; at += 8 * V) part(w + 4 * at, x, ahead, mask, k == 0, even, out + at);
    }
  }
};

#if !defined(LLMC_VNNI)
template <int G, int R, int P> struct TileKernel<Int8<G>, R, P> {
  using F = Int8<G>;
  static constexpr int V = AVX2_VECTORS<R>;
  static constexpr int BLOCK_K = G == 32 ? 32 : 64;       // of a group
  static constexpr int PAIRS = BLOCK_K / 4;               // of a row and block: even ones, then odd ones
  static constexpr int SUMS = TILE_MOST_ROWS * OUT_STRIDE;  // where the sums of a group wait, in scratch

  // 16-bit pairs of the rows' next block.
  LLMC_INLINE void widen(const uint8_t* x, int64_t stride, int32_t* pairs) {
    LLMC_ROWS LLMC_UNROLL for (int i = 0; i < BLOCK_K; i += 32) {
      const vi q = _mm256_loadu_si256((const vi*)(x + r * stride + i));
      int32_t* to = pairs + r * 2 * PAIRS + i / 4;
      part_store_i32(to, _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
      part_store_i32(to + PAIRS, _mm256_srai_epi16(q, 8));
    }
  }
  template <int ODD> LLMC_INLINE void step(const uint8_t* w, const int32_t* pairs, vi mask, vi (&acc)[R][V]) {
    vi b[V];
    LLMC_YMM {
      const vi bytes = ymm_at(w + 32 * v);
      b[v] = ODD ? _mm256_srli_epi16(bytes, 8) : _mm256_and_si256(mask, bytes);
    }
    LLMC_ROWS {
      const vi a = _mm256_set1_epi32(pairs[r * 2 * PAIRS + ODD * PAIRS]);
      LLMC_YMM add_in_place(acc[r][v], _mm256_madd_epi16(b[v], a));
    }
  }
  // One block of 8 * V columns, added to what `sums` or the rows' `zeros` hold.
  LLMC_INLINE void block(const uint8_t* w, const int32_t* pairs, int64_t ahead, vi mask, vi (&acc)[R][V]) {
    LLMC_STEPS (int j = 0; j < PAIRS; ++j) {
      LLMC_UNROLL for (int line = 0; line < V / 2; ++line) prefetch(w + 128 * j + 64 * line + ahead);
      load_again();
      step<0>(w + 128 * j, pairs + j, mask, acc);
      load_again();
      step<1>(w + 128 * j, pairs + j, mask, acc);
    }
  }
  // The end of a group: its sums times the rows' scales are added to `out`, or to zero.
  LLMC_INLINE void finish(const uint8_t* scales, int64_t stride, bool first, const vi (&acc)[R][V], float* out) {
    LLMC_ROWS {
      const vf scale = _mm256_broadcast_ss((const float*)(scales + r * stride));
      LLMC_YMM {
        float* o = out + r * OUT_STRIDE + 8 * v;
        const vf total = first ? _mm256_setzero_ps() : _mm256_load_ps(o);
        _mm256_store_ps(o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r][v]), scale, total));
      }
    }
  }

  LLMC_INLINE void run(const Tile& t) {
    const int64_t stride = F::row_bytes(t.k), len = F::group_len(t.k), groups = F::groups(t.k), ahead = t.ahead;
    const uint8_t *w = t.weights, *x = t.rows;
    const uint8_t *scales = (const uint8_t*)F::scales(x, t.k), *zeros = (const uint8_t*)F::zeros(x, t.k);
    int32_t *pairs = (int32_t*)t.scratch, *sums = (int32_t*)t.scratch + SUMS;
    const vi mask = opaque(_mm256_set1_epi16(0xff));
    for (int64_t g = 0; g < groups; ++g, scales += 4, zeros += 4)
      for (int64_t k = 0; k < len; k += BLOCK_K, w += BLOCK_K * PANEL, x += BLOCK_K) {
        widen(x, stride, pairs);
        for (int at = 0; at < PANEL; at += 8 * V) {
          vi acc[R][V];
          LLMC_ROWS LLMC_YMM acc[r][v] = k == 0 ? _mm256_set1_epi32(*(const int32_t*)(zeros + r * stride))
                                               : ymm_at((const uint8_t*)(sums + r * OUT_STRIDE + at + 8 * v));
          block(w + 4 * at, pairs, ahead, mask, acc);
          if (k + BLOCK_K == len) finish(scales, stride, g == 0, acc, t.out + at);
          else LLMC_ROWS LLMC_YMM part_store_i32(sums + r * OUT_STRIDE + at + 8 * v, acc[r][v]);
        }
      }
  }
};
#endif

#undef LLMC_YMM
#undef LLMC_STEPS

}  // namespace llmc
