// skinny_gemm.cuh - C[M,N] = A[M,K] * W[N,K]^T for a few rows (decode): bound by reading W once. Each warp owns
// four rows of W and reads them in 16-byte vectors; blocks of one column of tiles split K, and the last of them
// to finish adds the partial sums in a fixed order, so the answer does not depend on which one is last.
#pragma once
#include "epilogue.cuh"

template <int MAX_M, int SPLITS, Epilogue E>
struct SkinnyGemm {
  static constexpr int kWarps = 8, kRows = 4, kBN = kWarps * kRows, kThreads = kWarps * 32;

  // workspace f32 [SPLITS, M, N]; counters u32 [tiles], zero before the first launch and left zero.
  static LLMC_DEVICE void run(const bf16* A, const bf16* W, const EpilogueArgs& out, float* workspace, u32* counters,
                              int M, int N, int K) {
    LLMC_SMEM(raw);
    float* tile = reinterpret_cast<float*>(raw);               // [MAX_M, kBN]
    u32* last = reinterpret_cast<u32*>(tile + MAX_M * kBN);
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5, n0 = blockIdx.x * kBN, split = blockIdx.y;
    const int slice = (K / 8 + SPLITS - 1) / SPLITS * 8, k_begin = split * slice;
    const int k_end = k_begin + slice < K ? k_begin + slice : K;
    float acc[MAX_M][kRows] = {};
    grid_wait();
    for (int k = k_begin + lane * 8; k < k_end; k += 256) {
      Vec16 w[kRows];
      LLMC_UNROLL
      for (int r = 0; r < kRows; r++) {
        const int n = n0 + warp * kRows + r;
        w[r] = n < N ? load16_stream(W + size_t(n) * K + k) : Vec16{};
      }
      LLMC_UNROLL
      for (int m = 0; m < MAX_M; m++) {
        if (m < M) {
          const Vec16 a = load16(A + size_t(m) * K + k);
          LLMC_UNROLL
          for (int r = 0; r < kRows; r++)
            LLMC_UNROLL
            for (int j = 0; j < 4; j++)
              acc[m][r] += bf16_lo(w[r].x[j]) * bf16_lo(a.x[j]) + bf16_hi(w[r].x[j]) * bf16_hi(a.x[j]);
        }
      }
    }
    LLMC_UNROLL
    for (int m = 0; m < MAX_M; m++) {
      const float sum = warp_sum4(acc[m]);
      if (lane % 8 == 0) tile[m * kBN + warp * kRows + lane / 8] = sum;
    }
    __syncthreads();
    if (SPLITS > 1 && !add_partials(tile, last, workspace, counters, M, N, n0, split)) return;
    grid_launch_dependents();
    store(tile, out, M, N, n0);
  }

  // Publishes this block's tile; true in the block that came last, whose tile then holds the whole sum.
  static LLMC_DEVICE bool add_partials(float* tile, u32* last, float* workspace, u32* counters, int M, int N, int n0,
                                       int split) {
    const int t = threadIdx.x;
    for (int i = t; i < M * kBN; i += kThreads) {
      const int m = i / kBN, n = n0 + i % kBN;
      if (n < N) workspace[(size_t(split) * M + m) * N + n] = tile[i];
    }
    __syncthreads();
    if (t == 0) {
      __threadfence();  // releases what the whole block wrote: the barrier above ordered it before this thread
      const u32 ticket = atomic_add(counters + blockIdx.x, 1u);
      __threadfence();  // acquires what the other blocks released
      *last = ticket == SPLITS - 1;
      if (ticket == SPLITS - 1) atomic_exchange(counters + blockIdx.x, 0u);
    }
    __syncthreads();
    if (!*last) return false;
    for (int i = t; i < M * kBN; i += kThreads) {
      const int m = i / kBN, n = n0 + i % kBN;
      float sum = 0.0f;
      if (n < N)
        for (int s = 0; s < SPLITS; s++) sum += workspace[(size_t(s) * M + m) * N + n];
      tile[i] = sum;
    }
    __syncthreads();
    return true;
  }

  static LLMC_DEVICE void store(const float* tile, const EpilogueArgs& out, int M, int N, int n0) {
    constexpr int kPairs = kBN / (E == Epilogue::kSwiglu ? 4 : 2);  // pairs of output columns in a tile row
    for (int i = threadIdx.x; i < M * kPairs; i += kThreads) {
      const int m = i / kPairs, pair = i % kPairs;
      if (E == Epilogue::kSwiglu) {
        const float* gate = tile + m * kBN + pair / 4 * 16 + pair % 4 * 2;
        store_pair<Epilogue::kNone>(out, m, n0 / 2 + pair * 2, M, N / 2, silu(gate[0]) * gate[8], silu(gate[1]) * gate[9]);
      } else {
        const float* v = tile + m * kBN + pair * 2;
        store_pair<E>(out, m, n0 + pair * 2, M, N, v[0], v[1]);
      }
    }
  }
};
