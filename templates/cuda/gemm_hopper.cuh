// gemm_hopper.cuh - C[M,N] = A[M,K] * W[N,K]^T on Hopper: one producer warp feeds a ring of stages by TMA, two
// consumer warpgroups multiply them with wgmma, each 64 rows of a 128-row tile. A stage is "full" when its
// bytes have landed, "empty" when all eight consumer warps are past the wgmma that read it.
#pragma once
#include "epilogue.cuh"

template <int BN, int STAGES, Epilogue E>
struct HopperGemm {
  static constexpr int kBM = 128, kBK = 64, kThreads = 384, kConsumerWarps = 8, kRegs = BN / 2;
  static constexpr u32 kABytes = kBM * kBK * 2, kBBytes = BN * kBK * 2, kStageBytes = kABytes + kBBytes;
  static constexpr u32 kSmemBytes = STAGES * kStageBytes + STAGES * 16;

  static LLMC_DEVICE u32 full(u32 smem, int s) { return smem + STAGES * kStageBytes + u32(s) * 16; }
  static LLMC_DEVICE u32 empty(u32 smem, int s) { return full(smem, s) + 8; }

  static LLMC_DEVICE void produce(u32 smem, const TensorMap* a, const TensorMap* w, int m0, int n0, int steps) {
    for (int step = 0; step < steps; step++) {
      const int s = step % STAGES;
      if (step >= STAGES) mbar_wait(empty(smem, s), u32(step / STAGES - 1) & 1);
      mbar_expect_tx(full(smem, s), kStageBytes);
      tma_load_2d(smem + s * kStageBytes, a, full(smem, s), step * kBK, m0);
      tma_load_2d(smem + s * kStageBytes + kABytes, w, full(smem, s), step * kBK, n0);
    }
  }

  static LLMC_DEVICE void consume(u32 smem, float (&acc)[kRegs], int group, int lane, int steps) {
    for (int step = 0; step < steps; step++) {
      const int s = step % STAGES;
      mbar_wait(full(smem, s), u32(step / STAGES) & 1);
      const u32 a = smem + s * kStageBytes + u32(group) * 64 * 128, b = smem + s * kStageBytes + kABytes;
      wgmma_fence();
      LLMC_UNROLL
      for (int k = 0; k < kBK / 16; k++)  // 16 elements along K are 32 bytes further in each swizzled row
        wgmma_ss<bf16>(acc, wgmma_desc_sw128(a + k * 32), wgmma_desc_sw128(b + k * 32), true);
      wgmma_commit();
      wgmma_wait<1>();  // the step before this one has been read
      if (step > 0 && lane == 0) mbar_arrive(empty(smem, (step - 1) % STAGES));
    }
    wgmma_wait<0>();
  }

  static LLMC_DEVICE void run(const TensorMap* a, const TensorMap* w, const EpilogueArgs& out, int M, int N, int K) {
    LLMC_SMEM(raw);
    const u32 smem = smem_addr(raw);
    const int m0 = blockIdx.y * kBM, n0 = blockIdx.x * BN, steps = (K + kBK - 1) / kBK;
    const int group = threadIdx.x >> 7, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
      for (int s = 0; s < STAGES; s++) {
        mbar_init(full(smem, s), 1);
        mbar_init(empty(smem, s), kConsumerWarps);
      }
      mbar_fence_init();
    }
    __syncthreads();
    grid_wait();
    if (group == 0) {
      setmaxnreg_dec<40>();
      if (threadIdx.x == 0) produce(smem, a, w, m0, n0, steps);
    } else {
      setmaxnreg_inc<232>();
      float acc[kRegs];
      LLMC_UNROLL
      for (int i = 0; i < kRegs; i++) acc[i] = 0.0f;
      consume(smem, acc, group - 1, lane, steps);
      grid_launch_dependents();
      const int row = m0 + (group - 1) * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
      store_strip<E, BN / 8>(out, [&](int n, int v) { return acc[n * 4 + v]; }, row, n0, lane, M, N);
    }
  }
};
