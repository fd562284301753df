// rms_norm.cuh - y = x * rsqrt(mean(x^2) + eps) * w over rows, with the residual addition in front of it:
// s = x + residual; residual <- s; y = rms_norm(s). One block per row, 16-byte accesses, sums in f32.
#pragma once
#include "device.cuh"

// x, y [rows, H]; residual [rows, H] in and out when ADD; w [H]. H % 8 == 0. Shared memory: THREADS/32 floats.
template <int H, int THREADS, bool ADD>
LLMC_DEVICE void rms_norm_row(const bf16* x, bf16* residual, const bf16* w, bf16* y, float eps) {
  static_assert(H % 8 == 0 && THREADS % 32 == 0, "rows are read in 16-byte vectors by whole warps");
  constexpr int kVectors = H / 8, kPerThread = (kVectors + THREADS - 1) / THREADS, kWarps = THREADS / 32;
  LLMC_SMEM(smem);
  float* partial = reinterpret_cast<float*>(smem);
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const size_t row = size_t(blockIdx.x) * H;

  grid_wait();  // x and residual come from the kernel before
  float v[kPerThread][8];
  float sum = 0.0f;
  LLMC_UNROLL
  for (int i = 0; i < kPerThread; i++) {
    const int c = t + i * THREADS;
    if (c < kVectors) {
      const Vec16 a = load16(x + row + c * 8);
      LLMC_UNROLL
      for (int j = 0; j < 4; j++) v[i][2 * j] = bf16_lo(a.x[j]), v[i][2 * j + 1] = bf16_hi(a.x[j]);
      if (ADD) {
        const Vec16 r = load16(residual + row + c * 8);
        Vec16 s;
        LLMC_UNROLL
        for (int j = 0; j < 4; j++) {
          // The sum is rounded to bf16 once, as the residual stream stores it, and normalised from there.
          s.x[j] = pack_bf16(v[i][2 * j] + bf16_lo(r.x[j]), v[i][2 * j + 1] + bf16_hi(r.x[j]));
          v[i][2 * j] = bf16_lo(s.x[j]), v[i][2 * j + 1] = bf16_hi(s.x[j]);
        }
        store16(residual + row + c * 8, s);
      }
      LLMC_UNROLL
      for (int j = 0; j < 8; j++) sum += v[i][j] * v[i][j];
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  sum = 0.0f;
  LLMC_UNROLL
  for (int i = 0; i < kWarps; i++) sum += partial[i];
  const float scale = rsqrt_approx(sum / H + eps);
  grid_launch_dependents();
  LLMC_UNROLL
  for (int i = 0; i < kPerThread; i++) {
    const int c = t + i * THREADS;
    if (c < kVectors) {
      const Vec16 g = load16(w + c * 8);
      Vec16 out;
      LLMC_UNROLL
      for (int j = 0; j < 4; j++)
        out.x[j] = pack_bf16(v[i][2 * j] * scale * bf16_lo(g.x[j]), v[i][2 * j + 1] * scale * bf16_hi(g.x[j]));
      store16(y + row + c * 8, out);
    }
  }
}
