// linear_wgmma.cuh - a linear on Hopper: a producer warp feeds a ring of stages by TMA, one or two consumer warpgroups
// multiply them with wgmma m64nBTk16, each 64 output channels by all tokens of the tile. A stage is "full" when the bytes
// of both operands have landed, "empty" when all consumer warps are past the wgmma that read it.
#pragma once
#include "linear.cuh"

template <class Shape, int STAGES, class Epilogue>
struct LinearWgmma {
  using T = typename Shape::Element;
  static constexpr int kGroups = Shape::kBO / 64, kConsumers = kGroups * 128, kThreads = kConsumers + 32;
  static constexpr int kBO = Shape::kBO, kBT = Shape::kBT, kBK = Shape::kBK, kQuads = kBT / 8, kRegs = kBT / 2;
  static constexpr u32 kWBytes = kBO * kBK * 2, kXBytes = kBT * kBK * 2, kStageBytes = kWBytes + kXBytes;
  static constexpr u32 kRingBytes = STAGES * kStageBytes;
  static constexpr u32 kBarriersAt = max_of(kRingBytes, Shape::kTileBytes);
  static constexpr u32 kLastAt = kBarriersAt + STAGES * 16, kSmemBytes = kLastAt + 16;
  static_assert((kGroups == 1 || kGroups == 2) && kBO % 64 == 0 && STAGES >= 2, "tile shape");

  static LLMC_DEVICE u32 full(u32 smem, int stage) { return smem + kBarriersAt + u32(stage) * 16; }
  static LLMC_DEVICE u32 empty(u32 smem, int stage) { return full(smem, stage) + 8; }

  // One thread. Weights go ahead of grid_wait as far as the ring reaches, for they are nobody's result.
  static LLMC_DEVICE void produce(u32 smem, const TensorMap* x, const TensorMap* w, const Counts* counts, BlockTile at,
                                  int first, int steps) {
    const int early = Shape::kEarlyWeights ? min_of(steps, STAGES) : 0;
    auto fetch_w = [&](int step) {
      const int s = step % STAGES;
      mbar_expect_tx(full(smem, s), kWBytes);
      tma_load_2d(smem + s * kStageBytes, w, full(smem, s), (first + step) * kBK, at.out * kBO);
    };
    for (int step = 0; step < early; step++) fetch_w(step);
    grid_wait();
    if (at.tokens * kBT >= Shape::count(counts)) {  // nothing to do: but no copy may land when the block is gone
      for (int s = 0; s < early; s++) {
        mbar_arrive(full(smem, s));
        mbar_wait(full(smem, s), 0);
      }
      return;
    }
    for (int step = 0; step < steps; step++) {
      const int s = step % STAGES;
      if (step >= STAGES) mbar_wait(empty(smem, s), u32(step / STAGES - 1) & 1);
      if (step >= early) fetch_w(step);
      mbar_expect_tx(full(smem, s), kXBytes);
      tma_load_2d(smem + s * kStageBytes + kWBytes, x, full(smem, s), (first + step) * kBK, at.tokens * kBT);
    }
  }

  // acc = the products of steps begin..end-1 of this block.
  static LLMC_DEVICE void consume(u32 smem, float (&acc)[kRegs], int group, int lane, int begin, int end) {
    for (int step = begin; step < end; step++) {
      const int s = step % STAGES;
      mbar_wait(full(smem, s), u32(step / STAGES) & 1);
      const u32 w = smem + s * kStageBytes + u32(group) * 64 * 128, x = smem + s * kStageBytes + kWBytes;
      wgmma_fence();
      LLMC_UNROLL
      for (int k = 0; k < kBK / 16; k++)  // 16 elements along K are 32 bytes further in each swizzled row
        wgmma_ss<T>(acc, wgmma_desc_sw128(w + k * 32), wgmma_desc_sw128(x + k * 32), step > begin || k > 0);
      wgmma_commit();
      wgmma_wait<1>();  // the step before this one has been read
      if (step > begin && lane == 0) mbar_arrive(empty(smem, (step - 1) % STAGES));
    }
    wgmma_wait<0>();
    if (lane == 0) mbar_arrive(empty(smem, (end - 1) % STAGES));
  }

  // x T[tokens, K] in boxes BT x 64; w T[N, K] in boxes BO x 64, both with 128 B swizzle; workspace and counters null
  // unless slices run in parallel.
  static LLMC_DEVICE void run(const TensorMap* x, const TensorMap* w, const Counts* counts, const Epilogue& epilogue,
                              float* workspace, u32* counters) {
    LLMC_SMEM(raw);
    const u32 smem = smem_addr(raw);
    const int thread = threadIdx.x, lane = thread & 31, group = thread >> 7;
    const BlockTile at = Shape::tile();
    const int first = Shape::first_step(), steps = Shape::end_step() - first;
    if (thread == 0) {
      for (int s = 0; s < STAGES; s++) {
        mbar_init(full(smem, s), 2);  // one arrival for each operand
        mbar_init(empty(smem, s), kConsumers / 32);
      }
      mbar_fence_init();
    }
    __syncthreads();
    if (thread >= kConsumers) {
      if (lane == 0) produce(smem, x, w, counts, at, first, steps);
      return;
    }
    grid_wait();
    const int count = Shape::count(counts);
    if (at.tokens * kBT >= count) return;
    float acc[kRegs];
    if (Shape::kTotals) {
      float total[kRegs] = {};
      for (int begin = 0; begin < steps; begin += Shape::kSliceSteps) {
        consume(smem, acc, group, lane, begin, min_of(begin + Shape::kSliceSteps, steps));
        LLMC_UNROLL
        for (int i = 0; i < kRegs; i++) total[i] += acc[i];
      }
      LLMC_UNROLL
      for (int i = 0; i < kRegs; i++) acc[i] = total[i];
    } else {
      consume(smem, acc, group, lane, 0, steps);
    }
    float sums[kQuads][4];
    LLMC_UNROLL
    for (int i = 0; i < kRegs; i++) sums[i / 4][i % 4] = acc[i];
    auto sync = [] { named_barrier_sync(1, kConsumers); };
    if (Shape::kSplit) {
      u32* last = reinterpret_cast<u32*>(raw + kLastAt);
      if (!join_slices<Shape::kSlices, kConsumers>(sums, workspace, counters, last, thread, sync)) return;
    }
    sync();  // the tile lies where the ring was
    float* tile = reinterpret_cast<float*>(raw);
    LLMC_UNROLL
    for (int q = 0; q < kQuads; q++)
      put_quad<Shape>(tile, (thread >> 5) * 16 + (lane >> 2), q * 8 + (lane & 3) * 2, quad(sums[q]));
    sync();
    grid_launch_dependents();
    finish_tile<Shape, Epilogue, kConsumers>(epilogue, tile, thread, at, count);
  }
};
