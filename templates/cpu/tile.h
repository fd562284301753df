// Micro-kernels of linear: R operand rows times the 32 * P columns of P neighbouring panels, over all of K.
//
// One file for the tiles of a format; here is what they share.
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
//   Quant    tile_codes.h with int8 inputs, widened.h with bf16 ones
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
#elif defined(LLMC_NEON)
constexpr int TILE_ROWS = 2, TILE_PANELS = 1;  // 16 of 32, four to a f32x16
#else
constexpr int TILE_ROWS = 1, TILE_PANELS = 1;  // 8 of 16, four to a f32x16
#endif
constexpr int OUT_STRIDE = 2 * PANEL;  // floats between two rows of a tile's result

// Operand rows of a format's largest tile.
template <class F> constexpr int MOST_ROWS = TILE_ROWS;
#if defined(LLMC_AVX2)  // tile_avx2.h
constexpr int TILE_MOST_ROWS = 4;
template <> inline constexpr int MOST_ROWS<F32> = TILE_MOST_ROWS;
template <> inline constexpr int MOST_ROWS<Bf16> = TILE_MOST_ROWS;
#if !defined(LLMC_VNNI)  // else tile_int8.h
template <int G> inline constexpr int MOST_ROWS<Int8<G>> = TILE_MOST_ROWS;
#endif
#endif

struct Tile {
  const uint8_t* weights;  // first panel; the second follows after panel_bytes
  const uint8_t* rows;     // first operand row
  int64_t k;
  int64_t ahead;           // bytes between a weight that is read and the one to prefetch
  float* out;              // [MOST_ROWS<F>][OUT_STRIDE]
  float* scratch;          // [2][MOST_ROWS<F>][OUT_STRIDE], Bf16 blocks and AVX2 use it
};

// How many of `left` rows to take at once, so that all such takes are about as large.
constexpr int even_rows(int64_t left, int most) {
  const int64_t takes = (left + most - 1) / most;
  return (int)((left + takes - 1) / takes);
}
template <int R> struct Rows { static constexpr int value = R; };
// Calls body(Rows<rows>) for LEAST <= rows <= MOST.
template <int LEAST, int MOST, class Body> LLMC_INLINE void with_rows(int rows, Body body) {
  if constexpr (LEAST == MOST) body(Rows<LEAST>{});
  else if (rows == LEAST) body(Rows<LEAST>{});
  else with_rows<LEAST + 1, MOST>(rows, body);
}

#define LLMC_ROWS LLMC_UNROLL for (int r = 0; r < R; ++r)
#define LLMC_VECTORS LLMC_UNROLL for (int v = 0; v < 2 * P; ++v)

template <class F, int R, int P> struct TileKernel;
template <class F, int R, int P> __attribute__((noinline)) void tile(const Tile& t) { TileKernel<F, R, P>::run(t); }

LLMC_INLINE i32x16 broadcast_4_bytes(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return splat_i32(x);
}

}  // namespace llmc
