// epilogue.cuh - what a GEMM does with its f32 accumulators on the way out: bias, residual, SwiGLU.
//
// SwiGLU: the weight's rows alternate in groups of eight, eight of the gate and eight of the up projection for
// the same eight outputs, so that both meet in neighbouring n8 tiles of one thread. N counts both; the output
// has N/2 columns.
#pragma once
#include "device.cuh"

enum class Epilogue { kNone, kBias, kResidual, kBiasResidual, kSwiglu };

constexpr float kLog2E = 1.4426950408889634f;

LLMC_DEVICE float silu(float x) { return x * rcp_approx(1.0f + exp2_approx(-x * kLog2E)); }

struct EpilogueArgs {
  const bf16* bias;      // [N]
  const bf16* residual;  // [M, N]; may be the output itself
  bf16* out;             // [M, N], or [M, N/2] for SwiGLU
};

// Two neighbouring columns of one row; col is even and N % 8 == 0, so both are inside or outside.
template <Epilogue E>
LLMC_DEVICE void store_pair(const EpilogueArgs& a, int row, int col, int M, int N, float v0, float v1) {
  if (row >= M || col >= N) return;
  const size_t at = size_t(row) * N + col;
  if (E == Epilogue::kBias || E == Epilogue::kBiasResidual) {
    const u32 b = load4(a.bias + col);
    v0 += bf16_lo(b), v1 += bf16_hi(b);
  }
  if (E == Epilogue::kResidual || E == Epilogue::kBiasResidual) {
    const u32 r = load4(a.residual + at);
    v0 += bf16_lo(r), v1 += bf16_hi(r);
  }
  store4(a.out + at, pack_bf16(v0, v1));
}

// acc[n][h*2 + e]: n8 tile n, row r0 + 8h, column 8n + 2*(lane%4) + e of a strip that starts at (r0, c0):
// the accumulator layout of mma.m16n8 and, with consecutive tiles, of wgmma.
template <Epilogue E, int TILES, class Acc>
LLMC_DEVICE void store_strip(const EpilogueArgs& a, const Acc& acc, int r0, int c0, int lane, int M, int N) {
  LLMC_UNROLL
  for (int h = 0; h < 2; h++) {
    const int row = r0 + h * 8;
    if (E == Epilogue::kSwiglu) {
      LLMC_UNROLL
      for (int n = 0; n + 1 < TILES; n += 2) {
        const int col = (c0 + n * 8) / 2 + (lane & 3) * 2;
        const float v0 = silu(acc(n, h * 2)) * acc(n + 1, h * 2);
        const float v1 = silu(acc(n, h * 2 + 1)) * acc(n + 1, h * 2 + 1);
        store_pair<Epilogue::kNone>(a, row, col, M, N / 2, v0, v1);
      }
    } else {
      LLMC_UNROLL
      for (int n = 0; n < TILES; n++)
        store_pair<E>(a, row, c0 + n * 8 + (lane & 3) * 2, M, N, acc(n, h * 2), acc(n, h * 2 + 1));
    }
  }
}
