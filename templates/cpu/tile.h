// Micro-kernels of linear: R operand rows times the 32 * P columns of P neighbouring panels, over all of K.
//
//   tile<F, R, P>(t)    t.out[r * 64 + c] = sum over k of x[r][k] * w[k][c]      (Int8: before the channel scale)
//
// numerics (canonical: the order depends on k alone, so every R, P and instruction set below gives the same bits)
//   F32      one chain of fma over ascending k, from zero
//   Bf16     LLMC_BF16 without LLMC_AMX: one chain of vdpbf16ps over ascending pairs, from zero. Everywhere else, blocks
//            of 32 k: one chain of fma over the 16 even k and one over the 16 odd k, both from zero, their sum added
//            to the total. This is what an AMX tile does, bit for bit, with denormals flushed (threads.h). Products of
//            bf16 are exact in f32, so a target without fma gives the same bits too.
//   Int8<G>  exact int32 inside a group, then total = fma(sum, activation scale, total) over ascending groups
// limits: one function per (format, R, P), never inlined: all layers of a model share it, and a test scans its assembly
// for vectors that the compiler spilled.
#pragma once
#include "operand.h"

namespace llmc {

#if defined(LLMC_BF16) && !defined(LLMC_AMX)
constexpr bool BF16_PAIRS = true;
#else
constexpr bool BF16_PAIRS = false;
#endif

#if defined(LLMC_AVX512)
constexpr int TILE_ROWS = 6, TILE_PANELS = 2;  // 24 accumulators of 32 registers
#elif defined(LLMC_AVX2)
constexpr int TILE_ROWS = 2, TILE_PANELS = 1;  // 8 of 16, two to a f32x16
#else
constexpr int TILE_ROWS = 1, TILE_PANELS = 1;  // 8 of 16, four to a f32x16
#endif
constexpr int OUT_STRIDE = 2 * PANEL;  // floats between two rows of a tile's result

struct Tile {
  const uint8_t* weights;  // first panel; the second follows after panel_bytes
  const uint8_t* rows;     // first operand row
  int64_t k;
  int64_t ahead;           // bytes between a weight that is read and the one to prefetch
  float* out;              // [TILE_ROWS][OUT_STRIDE]
  float* scratch;          // [2][TILE_ROWS][OUT_STRIDE], Bf16 blocks use it
};

#define LLMC_ROWS LLMC_UNROLL for (int r = 0; r < R; ++r)
#define LLMC_VECTORS LLMC_UNROLL for (int v = 0; v < 2 * P; ++v)

template <class F, int R, int P> struct TileKernel;
template <class F, int R, int P> __attribute__((noinline)) void tile(const Tile& t) { TileKernel<F, R, P>::run(t); }

LLMC_INLINE i32x16 broadcast_4_bytes(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return splat_i32(x);
}

template <int R, int P> struct TileKernel<F32, R, P> {
  LLMC_INLINE void run(const Tile& t) {
    const int64_t panel = F32::panel_bytes(t.k) / 4, stride = F32::row_bytes(t.k) / 4;
    const float *w = (const float*)t.weights, *x = (const float*)t.rows;
    f32x16 acc[R][2 * P];
    LLMC_ROWS LLMC_VECTORS acc[r][v] = splat(0.0f);
    for (int64_t k = 0; k < t.k; ++k, w += PANEL, ++x) {
      f32x16 b[2 * P];
      LLMC_VECTORS {
        const float* p = w + (v / 2) * panel + (v % 2) * 16;
        b[v] = load(p);
        prefetch((const char*)p + t.ahead);
      }
      LLMC_ROWS {
        f32x16 a = splat(x[r * stride]);
        LLMC_VECTORS acc[r][v] = fma(b[v], a, acc[r][v]);
      }
    }
    LLMC_ROWS LLMC_VECTORS store(t.out + r * OUT_STRIDE + v * 16, acc[r][v]);
  }
};

template <int G, int R, int P> struct TileKernel<Int8<G>, R, P> {
  using F = Int8<G>;

  // Four k.
  LLMC_INLINE void step(const uint8_t* w, int64_t panel, const uint8_t* x, int64_t stride, int64_t ahead,
                        i32x16 (&acc)[R][2 * P]) {
#if defined(LLMC_VNNI)
    i32x16 b[2 * P];
    LLMC_VECTORS {
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      b[v] = load_i32(p);
      prefetch(p + ahead);
    }
    LLMC_ROWS {
      i32x16 a = broadcast_4_bytes(x + r * stride);
      LLMC_VECTORS acc[r][v] = dot_i8(acc[r][v], b[v], a);
    }
#else
    LLMC_VECTORS {  // widening needs registers: one vector of weights at a time
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      i32x16 b = load_i32(p);
      prefetch(p + ahead);
      LLMC_ROWS acc[r][v] = dot_i8(acc[r][v], b, broadcast_4_bytes(x + r * stride));
      load_again();
    }
#endif
  }

  LLMC_INLINE void run(const Tile& t) {
    const int64_t panel = F::panel_bytes(t.k), stride = F::row_bytes(t.k), len = F::group_len(t.k);
    const uint8_t *w = t.weights, *x = t.rows;
    const float* scales = F::scales(x, t.k);
    const int32_t* zeros = F::zeros(x, t.k);
    for (int64_t g = 0; g < F::groups(t.k); ++g, ++scales, ++zeros) {
      i32x16 acc[R][2 * P];
      LLMC_ROWS {
        i32x16 zero = broadcast_4_bytes((const uint8_t*)zeros + r * stride);
        LLMC_VECTORS acc[r][v] = zero;
      }
      for (int64_t k = 0; k < len; k += 4, w += PANEL * 4, x += 4) step(w, panel, x, stride, t.ahead, acc);
      LLMC_ROWS {
        f32x16 scale = splat(*(const float*)((const uint8_t*)scales + r * stride));
        LLMC_VECTORS {
          float* o = t.out + r * OUT_STRIDE + v * 16;
          f32x16 total = g == 0 ? splat(0.0f) : load(o);
          store(o, fma(to_f32(acc[r][v]), scale, total));
        }
      }
    }
  }
};

// The even (ODD = 0) or odd k of one block of 32: acc[r][v] += x[r][2j + ODD] * w[2j + ODD][v]; x is f32.
template <int R, int P, int ODD>
LLMC_INLINE void bf16_chain(const uint8_t* w, int64_t panel, int64_t ahead, const float* x, f32x16 (&acc)[R][2 * P]) {
  LLMC_ROWS LLMC_VECTORS acc[r][v] = splat(0.0f);
  for (int j = 0; j < 16; ++j, w += PANEL * 4, x += 2) {
    f32x16 b[2 * P];
    LLMC_VECTORS {
      const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
      i32x16 pairs = load_i32(p);
      b[v] = ODD ? pair_odd(pairs) : pair_even(pairs);
      if (!ODD) prefetch(p + ahead);
    }
    LLMC_ROWS {
      f32x16 a = splat(x[r * 32 + ODD]);
      LLMC_VECTORS acc[r][v] = fma(b[v], a, acc[r][v]);
    }
  }
}

template <int R, int P> struct TileKernel<Bf16, R, P> {
  static constexpr int WIDTH = 2 * P;

  LLMC_INLINE void blocks(const Tile& t) {
    const int64_t panel = Bf16::panel_bytes(t.k), stride = Bf16::row_bytes(t.k), padded = Bf16::pad_k(t.k);
    const uint8_t *w = t.weights, *rows = t.rows;
    float *x = t.scratch, *even = t.scratch + TILE_ROWS * OUT_STRIDE;
    for (int64_t k = 0; k < padded; k += 32, w += 16 * PANEL * 4, rows += 64) {
      LLMC_ROWS {
        const uint16_t* a = (const uint16_t*)(rows + r * stride);
        store(x + r * 32, load_bf16(a));
        store(x + r * 32 + 16, load_bf16(a + 16));
      }
      f32x16 acc[R][WIDTH];
      bf16_chain<R, P, 0>(w, panel, t.ahead, x, acc);
      LLMC_ROWS LLMC_VECTORS store(even + r * OUT_STRIDE + v * 16, acc[r][v]);
      bf16_chain<R, P, 1>(w, panel, t.ahead, x, acc);
      LLMC_ROWS LLMC_VECTORS {
        float* o = t.out + r * OUT_STRIDE + v * 16;
        f32x16 sum = load(even + r * OUT_STRIDE + v * 16) + acc[r][v];
        store(o, k == 0 ? 0.0f + sum : load(o) + sum);
      }
    }
  }

#if defined(LLMC_BF16)
  LLMC_INLINE void pairs(const Tile& t) {
    const int64_t panel = Bf16::panel_bytes(t.k), stride = Bf16::row_bytes(t.k), padded = Bf16::pad_k(t.k);
    const uint8_t *w = t.weights, *x = t.rows;
    __m512 acc[R][WIDTH];
    LLMC_ROWS LLMC_VECTORS acc[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded; k += 2, w += PANEL * 4, x += 4) {
      __m512bh b[WIDTH];
      LLMC_VECTORS {
        const uint8_t* p = w + (v / 2) * panel + (v % 2) * 64;
        b[v] = (__m512bh)_mm512_loadu_si512(p);
        prefetch(p + t.ahead);
      }
      LLMC_ROWS {
        __m512bh a = (__m512bh)broadcast_4_bytes(x + r * stride).p[0];
        LLMC_VECTORS acc[r][v] = _mm512_dpbf16_ps(acc[r][v], b[v], a);
      }
    }
    LLMC_ROWS LLMC_VECTORS _mm512_storeu_ps(t.out + r * OUT_STRIDE + v * 16, acc[r][v]);
  }
#endif

  LLMC_INLINE void run(const Tile& t) {
#if defined(LLMC_BF16)
    if constexpr (BF16_PAIRS) return pairs(t);
#endif
    blocks(t);
  }
};

#undef LLMC_ROWS
#undef LLMC_VECTORS

}  // namespace llmc
