// linear: y = x W^T for any number of rows, with an epilogue on the results while they are still at hand.
//
//   linear<F>(Weights{panels, scales, offsets, n, k}, operand_rows, num_rows, epilogue, worker)
//
// abi: every worker calls it with the same arguments; no barrier inside. The operand is complete before the call.
// epilogue(row, col, n, a, b): results of columns col..col+15 (a) and col+16..col+31 (b) of one row; col is a multiple
//   of 32, n = min(32, N - col) of them are real. It writes what it wants; calls are unordered and concurrent, each
//   (row, col) comes once. A gated projection packs 16 gate columns, then the 16 matching up columns into every panel
//   (GATE_RUN of ir/ops/kernel.py), so a is the gate and b the up part of outputs col/2..col/2+15.
// numerics: canonical (tile.h); then Int8 results are multiplied by the channel's scale. Quant applies its own.
// limits: n, k >= 1; weights 64-byte aligned.
#pragma once
#include "threads.h"
#if defined(LLMC_AVX2)
#include "tile_avx2.h"
#else
#include "tile_bf16.h"
#include "tile_f32.h"
#endif
#if !defined(LLMC_AVX2) || defined(LLMC_VNNI)
#include "tile_int8.h"
#endif
#include "tile_codes.h"
#include "widened.h"
#if defined(LLMC_AMX)
#include "tile_amx.h"
#endif

#ifndef LLMC_L2_BYTES
#define LLMC_L2_BYTES (1 << 20)
#endif

namespace llmc {

constexpr int64_t CODES_AHEAD = 8192;  // bytes from low-bit weights to those that a call of few rows fetches meanwhile
constexpr int STREAMED_ROWS = 4;       // of such a call: memory gives one panel after the other faster than two at once

struct Weights {
  const void *panels, *scales, *offsets;  // scales and offsets as the format says, or null
  int64_t n, k;
};

// Plain f32 rows: out[row * stride + col] = y (+ bias[col]).
struct StoreRows {
  float* out;
  int64_t stride;
  const float* bias;  // [n], or null
  inline __attribute__((always_inline)) void operator()(int row, int col, int n, f32x16 a, f32x16 b) const {
    float* y = out + row * stride + col;
    if (bias) {
      a = a + load(bias + col, n);
      b = b + load(bias + col + 16, n - 16);
    }
    if (n == PANEL) {
      store(y, a);
      store(y + 16, b);
    } else {
      store(y, a, n);
      store(y + 16, b, n - 16);
    }
  }
};

// What the rows of one call share out: rows in chunks whose operand stays in L2, panels of each chunk among workers.
LLMC_INLINE int64_t row_chunk(int64_t rows, int64_t row_bytes) {
  const int64_t step = 96;  // whole tiles of 4, 6, 16 and 32 rows
  int64_t fit = LLMC_L2_BYTES / 2 / row_bytes / step * step;
  if (fit < step) fit = step;
  if (rows <= fit) return rows;
  int64_t chunks = (rows + fit - 1) / fit;
  return round_up((rows + chunks - 1) / chunks, step);
}

template <class F, int P> LLMC_INLINE void run_tile(int rows, const Tile& t) {
  with_rows<1, MOST_ROWS<F>>(rows, [&](auto r) __attribute__((always_inline)) { tile<F, decltype(r)::value, P>(t); });
}

template <class F, class Epilogue>
LLMC_INLINE void finish_tile(const Weights& w, const float* out, int64_t row, int rows, int64_t panel, int panels,
                             const Epilogue& epilogue) {
  for (int p = 0; p < panels; ++p) {
    const int64_t col = (panel + p) * PANEL;
    const int n = (int)(w.n - col < PANEL ? w.n - col : PANEL);
    const float* scales = (const float*)w.scales;
    const bool scaled = !IS_QUANT<F> && scales;
    const f32x16 low = scaled ? load(scales + col) : splat(1.0f), high = scaled ? load(scales + col + 16) : low;
    for (int r = 0; r < rows; ++r) {
      const float* y = out + r * OUT_STRIDE + p * PANEL;
      f32x16 a = load(y), b = load(y + 16);
      epilogue((int)(row + r), (int)col, n, scaled ? a * low : a, scaled ? b * high : b);
    }
  }
}

// One call of linear: what stays the same over its blocks.
template <class F, class Epilogue> struct LinearCall {
  const Weights& w;
  const uint8_t* operand;
  const Epilogue& epilogue;
  const int64_t panel_bytes, row_bytes;

  inline Tile tile_at(int64_t row, int64_t panel, int64_t ahead, float* out, float* scratch) const {
    const uint8_t *weights = (const uint8_t*)w.panels + panel * panel_bytes, *rows = operand + row * row_bytes;
    return {weights, rows, w.k, ahead, out, scratch};
  }

  // Rows [row, end) of panels [panel, panel + panels), panels <= 2.
  inline void block(int64_t row, int64_t end, int64_t panel, int panels) const {
    if constexpr (IS_QUANT<F>) quant_block(row, end, panel, panels);
    else tiled_block(row, end, panel, panels);
  }

  // The first tile fetches the next panels meanwhile.
  inline void tiled_block(int64_t row, int64_t end, int64_t panel, int panels) const {
    constexpr int MOST = MOST_ROWS<F>;
    alignas(64) float out[MOST * OUT_STRIDE], scratch[2 * MOST * OUT_STRIDE];
    int64_t ahead = end - row <= 2 * MOST ? LLMC_PREFETCH_BYTES : panels * panel_bytes;
    while (row < end) {
      int rows = end - row < MOST ? (int)(end - row) : MOST;
      Tile t = tile_at(row, panel, ahead, out, scratch);
      if (TILE_PANELS == 1 || panels == 1) run_tile<F, 1>(rows, t);
      else run_tile<F, TILE_PANELS>(rows, t);
      finish_tile<F>(w, out, row, rows, panel, panels, epilogue);
      row += rows;
      ahead = 0;
    }
  }

  // The first blocks fetch the next panels by turns, a single one what comes next in memory.
  inline void quant_block(int64_t row, int64_t end, int64_t panel, int panels) const {
    constexpr int MOST = BlockKernel<F, 1>::ROWS, TURNS = 4;
    alignas(64) float out[MOST * OUT_STRIDE];
    const int64_t blocks = (end - row + MOST - 1) / MOST, turns = blocks < TURNS ? blocks : TURNS;
    const int64_t turn = round_up(F::pad_k(w.k) / turns, 64), next = panels * panel_bytes;
    for (int64_t from = 0; row < end; from += turn) {
      const int rows = even_rows(end - row, MOST);
      const QuantBlock b{(const uint8_t*)w.panels + panel * panel_bytes, F::scales(w.scales, panel, w.k),
                         F::offsets(w.offsets, panel, w.k), operand + row * row_bytes, w.k, rows,
                         blocks > 1 ? next : CODES_AHEAD, from, from + turn, out};
      if (TILE_PANELS == 1 || panels == 1) BlockKernel<F, 1>::run(b);
      else BlockKernel<F, TILE_PANELS>::run(b);
      finish_tile<F>(w, out, row, rows, panel, panels, epilogue);
      row += rows;
    }
  }

#if defined(LLMC_AMX)
  inline void amx_block(AmxShape* shape, int64_t row, int64_t end, int64_t panel, int panels) const {
    alignas(64) float out[AMX_ROWS * OUT_STRIDE], scratch[AMX_ROWS * OUT_STRIDE];
    int64_t ahead = end - row <= 16 ? LLMC_PREFETCH_BYTES : panels * panel_bytes;
    while (row < end) {
      Tile t = tile_at(row, panel, ahead, out, scratch);
      int rows = run_amx_tile<F>(shape, t, end - row, panels);
      finish_tile<F>(w, out, row, rows, panel, panels, epilogue);
      row += rows;
      ahead = 0;
    }
  }
#endif
};

template <class F, class Epilogue>
__attribute__((noinline)) void linear(const Weights& w, const void* operand, int64_t rows, const Epilogue& epilogue,
                                      const Worker& worker) {
  if (rows == 0) return;
  const int64_t panels = (w.n + PANEL - 1) / PANEL, chunk = row_chunk(rows, F::row_bytes(w.k));
  const LinearCall<F, Epilogue> call{w, (const uint8_t*)operand, epilogue, F::panel_bytes(w.k), F::row_bytes(w.k)};
  int64_t unit, last;
  int most = IS_QUANT<F> && rows <= STREAMED_ROWS ? 1 : TILE_PANELS;
#if defined(LLMC_AMX)
  AmxShape shape;
  const bool amx = AmxFormat<F>::usable && rows >= AMX_LEAST_ROWS;
  if (amx && rows > 16) most = 1;
#endif
  worker.share((rows + chunk - 1) / chunk * panels, &unit, &last);
  while (unit < last) {
    int64_t row = unit / panels * chunk, panel = unit % panels;
    int64_t end = row + chunk < rows ? row + chunk : rows;
    int take = most == 2 && panel + 1 < panels && unit + 1 < last ? 2 : 1;
#if defined(LLMC_AMX)
    if constexpr (AmxFormat<F>::usable) {
      if (amx) call.amx_block(&shape, row, end, panel, take);
      else call.block(row, end, panel, take);
    } else
#endif
    call.block(row, end, panel, take);
    unit += take;
  }
#if defined(LLMC_AMX)
  shape.release();
#endif
}

}  // namespace llmc
