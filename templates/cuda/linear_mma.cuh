// linear_mma.cuh - a linear on every target: cp.async ring, ldmatrix, mma.sync.m16n8k16 with 16 output channels by 8
// tokens. Steps of 64 along K lie in shared memory as rows of 128 bytes, their 16-byte chunks XORed with the row.
#pragma once
#include "linear.cuh"

LLMC_DEVICE void mma_half(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a, b0, b1); }
LLMC_DEVICE void mma_half(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(c, a, b0, b1); }

// WO x WT warps over the tile of Shape; STAGES steps in the ring.
template <class Shape, int WO, int WT, int STAGES, class Epilogue>
struct LinearMma {
  using T = typename Shape::Element;
  static constexpr int kThreads = WO * WT * 32, kBO = Shape::kBO, kBT = Shape::kBT, kBK = Shape::kBK;
  static constexpr int kWO = kBO / WO, kWT = kBT / WT;  // one warp's part of the tile
  static constexpr int kRows = kWO / 16, kCols = kWT / 8, kQuads = kRows * kCols, kPairs = (kCols + 1) / 2;
  static constexpr u32 kStageBytes = (kBO + kBT) * kBK * 2, kRingBytes = STAGES * kStageBytes;
  static constexpr u32 kLastAt = max_of(kRingBytes, Shape::kTileBytes);
  static constexpr u32 kSmemBytes = kLastAt + 16;
  static_assert(kBO % (16 * WO) == 0 && kBT % (8 * WT) == 0 && (kWT == 8 || kWT % 16 == 0) && STAGES >= 2, "tile shape");

  static LLMC_DEVICE u32 offset(int row, int chunk) { return u32(row * 128 + ((chunk ^ (row & 7)) << 4)); }

  // Rows row0.. of a matrix of `rows` rows, columns k0..k0+63; what lies outside becomes zero, the columns between K
  // and the end of a row too, unless the matrix holds zeros there itself (PADDED).
  template <int ROWS, bool PADDED>
  static LLMC_DEVICE void load(u32 smem, const T* src, int row0, int rows, int k0) {
    LLMC_UNROLL
    for (int i = 0; i < (ROWS * 8 + kThreads - 1) / kThreads; i++) {
      const int c = int(threadIdx.x) + i * kThreads, row = c >> 3, k = k0 + (c & 7) * 8;
      if (ROWS * 8 % kThreads != 0 && c >= ROWS * 8) break;
      const bool valid = row0 + row < rows && k < Shape::kK;
      const T* from = valid ? row_at(src, row0 + row, Shape::kRowBytes) + k : src;
      const u32 to = smem + offset(row, c & 7);
      if (PADDED || Shape::kK % 8 == 0) cp_async16(to, from, valid);
      else cp_async16_head(to, from, valid ? min_of(Shape::kK - k, 8) * 2 : 0);
    }
  }

  // acc += the products of one stage, four steps of 16.
  static LLMC_DEVICE void multiply(float (&acc)[kQuads][4], u32 stage, int warp_out, int warp_tokens, int lane) {
    const u32 w0 = stage, x0 = stage + kBO * 128;
    const auto w_at = [&](int kk, int i) { return w0 + offset(warp_out * kWO + i * 16 + (lane & 15), kk * 2 + (lane >> 4)); };
    const auto x_at = [&](int load) {
      if (kCols == 1) return x0 + offset(warp_tokens * kWT + (lane & 7), load * 4 + (lane >> 3));  // eight tokens, two steps
      const int j = load % kPairs, kk = load / kPairs;
      return x0 + offset(warp_tokens * kWT + j * 16 + (lane & 7) + (lane >> 4) * 8, kk * 2 + (lane >> 3 & 1));
    };
    if (multiply_at_once<T, kRows, kCols, kBK / 16>(acc, w_at, x_at)) return;
    u32 b[kPairs][4];
    LLMC_UNROLL
    for (int kk = 0; kk < kBK / 16; kk++) {
      u32 a[kRows][4];
      LLMC_UNROLL
      for (int i = 0; i < kRows; i++) ldmatrix_x4(a[i], w_at(kk, i));
      if (kk * kCols % 2 == 0) {  // else the load before holds this step's fragment too
        LLMC_UNROLL
        for (int j = 0; j < kPairs; j++) ldmatrix_x4(b[j], x_at(kk * kCols / 2 + j));
      }
      LLMC_UNROLL
      for (int i = 0; i < kRows; i++)
        LLMC_UNROLL
        for (int j = 0; j < kCols; j++) {
          const int half = (kk * kCols + j) % 2 * 2;
          mma_half(T{}, acc[i * kCols + j], a[i], b[j / 2][half], b[j / 2][half + 1]);
        }
    }
  }

  // x T[tokens, K]; w T[N, K], rows padded with zeros; workspace and counters null unless slices run in parallel.
  static LLMC_DEVICE void run(const T* x, const T* w, const Counts* counts, const Epilogue& epilogue, float* workspace,
                              u32* counters) {
    LLMC_SMEM(raw);
    const u32 smem = smem_addr(raw);
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, warp_out = warp / WT, warp_tokens = warp % WT;
    const BlockTile at = Shape::tile();
    const int out0 = at.out * kBO, token0 = at.tokens * kBT, first = Shape::first_step(), end = Shape::end_step();
    auto fetch_w = [&](int step) {
      if (step < end) load<kBO, true>(smem + u32((step - first) % STAGES) * kStageBytes, w, out0, Shape::kN, step * kBK);
    };
    if (Shape::kEarlyWeights)
      for (int s = 0; s < STAGES - 1; s++) fetch_w(first + s);
    grid_wait();
    const int count = Shape::count(counts);
    if (token0 >= count) {  // nothing to do: but no copy may land in shared memory that is another block's by then
      cp_async_commit();
      cp_async_wait<0>();
      return;
    }
    auto fetch_x = [&](int step) {
      const u32 stage = smem + u32((step - first) % STAGES) * kStageBytes;
      if (step < end) load<kBT, false>(stage + kBO * 128, x, token0, count, step * kBK);
      cp_async_commit();  // an empty group keeps the count of groups equal to the count of steps
    };
    for (int s = 0; s < STAGES - 1; s++) {
      if (!Shape::kEarlyWeights) fetch_w(first + s);
      fetch_x(first + s);
    }
    float acc[kQuads][4], total[kQuads][4] = {};
    for (int begin = first; begin < end; begin += Shape::kSliceSteps) {
      const int slice_end = min_of(begin + Shape::kSliceSteps, end);
      clear(acc);
      for (int step = begin; step < slice_end; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // stage `step` is visible; everybody has left the stage fetched into next
        fetch_w(step + STAGES - 1);
        fetch_x(step + STAGES - 1);
        multiply(acc, smem + u32((step - first) % STAGES) * kStageBytes, warp_out, warp_tokens, lane);
      }
      if (Shape::kTotals) add(total, acc);
    }
    if (Shape::kTotals) copy(acc, total);
    float* tile = reinterpret_cast<float*>(raw);
    auto sync = [] { __syncthreads(); };
    if (Shape::kSplit) {
      u32* last = reinterpret_cast<u32*>(raw + kLastAt);
      if (!join_slices<Shape::kSlices, kThreads>(acc, workspace, counters, last, thread, sync)) return;
    }
    sync();  // the tile lies where the ring was
    LLMC_UNROLL
    for (int i = 0; i < kRows; i++)
      LLMC_UNROLL
      for (int j = 0; j < kCols; j++)
        put_quad<Shape>(tile, warp_out * kWO + i * 16 + (lane >> 2), warp_tokens * kWT + j * 8 + (lane & 3) * 2,
                        quad(acc[i * kCols + j]));
    sync();
    grid_launch_dependents();
    finish_tile<Shape, Epilogue, kThreads>(epilogue, tile, thread, at, count);
  }

  static LLMC_DEVICE void clear(float (&a)[kQuads][4]) {
    LLMC_UNROLL
    for (int q = 0; q < kQuads; q++)
      LLMC_UNROLL
      for (int v = 0; v < 4; v++) a[q][v] = 0.0f;
  }
  static LLMC_DEVICE void add(float (&to)[kQuads][4], const float (&a)[kQuads][4]) {
    LLMC_UNROLL
    for (int q = 0; q < kQuads; q++)
      LLMC_UNROLL
      for (int v = 0; v < 4; v++) to[q][v] += a[q][v];
  }
  static LLMC_DEVICE void copy(float (&to)[kQuads][4], const float (&a)[kQuads][4]) {
    LLMC_UNROLL
    for (int q = 0; q < kQuads; q++)
      LLMC_UNROLL
      for (int v = 0; v < 4; v++) to[q][v] = a[q][v];
  }
};
