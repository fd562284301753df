// gemm.cuh - C[M,N] = A[M,K] * W[N,K]^T in bf16 with f32 sums, for every target: cp.async pipeline, ldmatrix,
// mma.sync. Tiles of 64 in K lie in shared memory as rows of 128 bytes, their 16-byte chunks XORed with the row.
#pragma once
#include "epilogue.cuh"

template <int BM, int BN, int WARPS_M, int WARPS_N, int STAGES, Epilogue E>
struct GemmTile {
  static constexpr int kThreads = WARPS_M * WARPS_N * 32, kBK = 64;
  static constexpr int kWM = BM / WARPS_M, kWN = BN / WARPS_N;  // one warp's part of the tile
  static constexpr int kStageBytes = (BM + BN) * kBK * 2;
  static_assert(kWM % 16 == 0 && kWN % 16 == 0 && (BM * 8) % kThreads == 0 && (BN * 8) % kThreads == 0, "tile shape");

  static LLMC_DEVICE u32 offset(int row, int chunk) { return u32(row * 128 + ((chunk ^ (row & 7)) << 4)); }

  // Rows row0.. of a [rows, K] matrix, columns k0..k0+63; what lies outside becomes zero.
  template <int ROWS>
  static LLMC_DEVICE void load(u32 smem, const bf16* src, int row0, int rows, int k0, int K) {
    LLMC_UNROLL
    for (int i = 0; i < ROWS * 8 / kThreads; i++) {
      const int c = int(threadIdx.x) + i * kThreads, row = c >> 3, chunk = c & 7;
      const bool valid = row0 + row < rows && k0 + chunk * 8 < K;
      const bf16* from = valid ? src + size_t(row0 + row) * K + k0 + chunk * 8 : src;
      cp_async16(smem + offset(row, chunk), from, valid);
    }
  }

  static LLMC_DEVICE void run(const bf16* A, const bf16* W, const EpilogueArgs& out, int M, int N, int K) {
    LLMC_SMEM(raw);
    const u32 smem = smem_addr(raw);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp / WARPS_N, wn = warp % WARPS_N;
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, steps = (K + kBK - 1) / kBK;
    auto fetch = [&](int step) {
      if (step < steps) {
        const u32 stage = smem + u32(step % STAGES) * kStageBytes;
        load<BM>(stage, A, m0, M, step * kBK, K);
        load<BN>(stage + BM * 128, W, n0, N, step * kBK, K);
      }
      cp_async_commit();  // an empty group keeps the count of groups equal to the count of steps
    };
    float acc[kWM / 16][kWN / 8][4] = {};
    grid_wait();
    for (int s = 0; s < STAGES - 1; s++) fetch(s);
    for (int step = 0; step < steps; step++) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // stage `step` is visible; everybody has left the stage fetched into next
      fetch(step + STAGES - 1);
      const u32 a0 = smem + u32(step % STAGES) * kStageBytes, b0 = a0 + BM * 128;
      LLMC_UNROLL
      for (int kk = 0; kk < kBK / 16; kk++) {
        u32 a[kWM / 16][4], b[kWN / 16][4];
        LLMC_UNROLL
        for (int i = 0; i < kWM / 16; i++)
          ldmatrix_x4(a[i], a0 + offset(wm * kWM + i * 16 + (lane & 15), kk * 2 + (lane >> 4)));
        LLMC_UNROLL
        for (int j = 0; j < kWN / 16; j++)
          ldmatrix_x4(b[j], b0 + offset(wn * kWN + j * 16 + (lane & 7) + (lane >> 4) * 8, kk * 2 + (lane >> 3 & 1)));
        LLMC_UNROLL
        for (int i = 0; i < kWM / 16; i++)
          LLMC_UNROLL
          for (int j = 0; j < kWN / 8; j++) mma_bf16(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
    grid_launch_dependents();
    LLMC_UNROLL
    for (int i = 0; i < kWM / 16; i++)
      store_strip<E, kWN / 8>(out, [&](int n, int v) { return acc[i][n][v]; }, m0 + wm * kWM + i * 16 + (lane >> 2),
                              n0 + wn * kWN, lane, M, N);
  }
};
