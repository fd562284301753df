// linear.cuh - what the two linears share (linear_mma.cuh, linear_wgmma.cuh): the shape, which block computes what, the
// sum over slices of K, and the way out through the epilogue.
//
// y[t, n] = sum over k of x[t, k] * w[n, k]. Weights are the M operand of the matrix instruction and tokens its N, so
// one token and eight thousand take the same instruction, and y[t, n] is the same sum in every tile: steps of 16 along K
// from zero inside a slice of fixed size, then the slices in order. Slices run in blocks of their own, whose partial
// sums the last block to arrive adds, or one after the other in one block: the same additions.
#pragma once
#include "columns.cuh"
#include "math.cuh"
#include "step.cuh"

enum class CountedBy { kTokens, kRows };

struct BlockTile {
  int out, tokens;  // which tile of output channels, which of tokens
};

// N: rows of W. SLICE_K: columns of K in a slice, a multiple of 64. PARALLEL: slices in blocks of their own (grid.z).
// BO x BT: output channels x tokens of a block.
template <class T, int N, int K, int SLICE_K, bool PARALLEL, int BO, int BT, CountedBy COUNTED>
struct LinearShape {
  using Element = T;
  static constexpr int kN = N, kK = K, kBO = BO, kBT = BT, kBK = 64;
  static constexpr int kRowBytes = (K * 2 + 15) / 16 * 16;  // of X and of W
  static constexpr int kSteps = (K + kBK - 1) / kBK, kSliceSteps = SLICE_K / kBK;
  static constexpr int kSlices = (kSteps + kSliceSteps - 1) / kSliceSteps;
  static constexpr bool kSplit = PARALLEL && kSlices > 1;   // this block computes one slice
  static constexpr bool kTotals = !PARALLEL && kSlices > 1; // this block adds slices up
  static constexpr int kPitch = BO + 4;                     // f32 of a token in the tile: no bank conflicts
  static constexpr u32 kTileBytes = BT * kPitch * 4;
  // Few tokens: weights are worth fetching before the kernel in front has finished, for they are nobody's result.
  static constexpr bool kEarlyWeights = BT <= 64;
  static_assert(SLICE_K % kBK == 0 && BO % 32 == 0 && BT % 8 == 0, "tile shape");

  static LLMC_DEVICE int count(const Counts* counts) {
    return COUNTED == CountedBy::kTokens ? counts->tokens : counts->rows;
  }
  static LLMC_DEVICE int first_step() { return kSplit ? int(blockIdx.z) * kSliceSteps : 0; }
  static LLMC_DEVICE int end_step() {
    const int end = first_step() + kSliceSteps;
    return kSplit ? min_of(end, kSteps) : kSteps;
  }

  // Blocks that run at the same time share weights and tokens: eight tiles of channels wide, down all tokens.
  static LLMC_DEVICE BlockTile tile() {
    const int id = int(blockIdx.y * gridDim.x + blockIdx.x), per_group = 8 * int(gridDim.y);
    const int first = id / per_group * 8, inside = id % per_group, left = int(gridDim.x) - first;
    const int wide = min_of(left, 8);
    return {first + inside % wide, inside / wide};
  }
};

// Four accumulators of one thread: channels c, c + 8 and tokens t, t + 1 as [c, t] [c, t+1] [c+8, t] [c+8, t+1].
struct alignas(16) Quad {
  float v[4];
};
LLMC_DEVICE Quad quad(const float (&acc)[4]) { return Quad{{acc[0], acc[1], acc[2], acc[3]}}; }

// Publishes this block's sums of one slice; true in the block that came last, which then holds the sum over all slices.
// workspace: f32 [tiles][slices][quads][threads][4]; counters u32 [tiles], zero before the first launch and left zero.
template <int SLICES, int THREADS, int QUADS, class Sync>
LLMC_DEVICE bool join_slices(float (&acc)[QUADS][4], float* workspace, u32* counters, u32* last, int thread, const Sync& sync) {
  const size_t tile = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
  Quad* slices = reinterpret_cast<Quad*>(workspace) + tile * SLICES * QUADS * THREADS + thread;
  Quad* mine = slices + int(blockIdx.z) * QUADS * THREADS;
  LLMC_UNROLL
  for (int q = 0; q < QUADS; q++) mine[q * THREADS] = quad(acc[q]);
  sync();
  if (thread == 0) {
    __threadfence();  // releases what the whole block wrote: the barrier above ordered it before this thread
    const u32 ticket = atomic_add(counters + tile, 1u);
    __threadfence();  // acquires what the other blocks released
    *last = ticket == SLICES - 1;
    if (ticket == SLICES - 1) atomic_exchange(counters + tile, 0u);
  }
  sync();
  if (!*last) return false;
  LLMC_UNROLL
  for (int q = 0; q < QUADS; q++)
    LLMC_UNROLL
    for (int v = 0; v < 4; v++) acc[q][v] = 0.0f;
  for (int s = 0; s < SLICES; s++)
    LLMC_UNROLL
    for (int q = 0; q < QUADS; q++) {
      const Quad part = slices[(s * QUADS + q) * THREADS];
      LLMC_UNROLL
      for (int v = 0; v < 4; v++) acc[q][v] += part.v[v];
    }
  return true;
}

// One quad into the tile f32 [BT][kPitch].
template <class Shape>
LLMC_DEVICE void put_quad(float* tile, int channel, int token, const Quad& quad) {
  LLMC_UNROLL
  for (int v = 0; v < 4; v++) tile[(token + (v & 1)) * Shape::kPitch + channel + (v >> 1) * 8] = quad.v[v];
}

template <int V, class Epilogue>
LLMC_DEVICE void finish_columns(const Epilogue& epilogue, const float* sums, int row, int col) {
  float a[V], b[V];
  LLMC_UNROLL
  for (int j = 0; j < V; j++) {
    a[j] = sums[j];
    b[j] = Epilogue::kGated ? sums[16 + j] : 0.0f;
  }
  epilogue.finish(row, col, a, b);
}

// The whole tile through the epilogue: neighbouring threads take neighbouring columns of one token, 16 bytes of results
// each. Gated weights alternate 16 rows of gate and 16 of up.
template <class Shape, class Epilogue, int THREADS>
LLMC_DEVICE void finish_tile(const Epilogue& epilogue, const float* tile, int thread, BlockTile at, int count) {
  constexpr int kV = Epilogue::kVector, kOut = Epilogue::kGated ? Shape::kBO / 2 : Shape::kBO, kVectors = kOut / kV;
  static_assert(Epilogue::kWidth <= (Epilogue::kGated ? Shape::kN / 2 : Shape::kN), "columns of the results");
  for (int i = thread; i < Shape::kBT * kVectors; i += THREADS) {
    const int token = i / kVectors, c = i % kVectors * kV, row = at.tokens * Shape::kBT + token, col = at.out * kOut + c;
    if (row >= count) break;
    const float* sums = tile + token * Shape::kPitch + (Epilogue::kGated ? c / 16 * 32 + c % 16 : c);
    if (Epilogue::kWidth % kV == 0 || col + kV <= Epilogue::kWidth) {
      if (col < Epilogue::kWidth) finish_columns<kV>(epilogue, sums, row, col);
    } else {
      for (int j = 0; col + j < Epilogue::kWidth; j++) finish_columns<1>(epilogue, sums + j, row, col + j);
    }
  }
}
