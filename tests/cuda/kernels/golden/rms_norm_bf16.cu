// kernel: row-wise nodes, a block for each of the tokens of the step
//
// params   name, counter, arguments, text, threads, smem_bytes, vector_loads, vector_stores, work
// abi      (x_0 bf16[T, 576], norm_1 f32[576], out_0 bf16[T, 576], counts)
// launch   grid (tokens at most), block 128, dynamic shared memory 64 B
// limits   pointers 16-byte aligned; rows of arguments as codegen/cuda/plan/formats.py row_bytes has them
// numerics f32; a reduction's order depends on its width alone (codegen/cuda/rows/loops.py)
#include "rows.cuh"

LLMC_KERNEL(128, 1) kernel(
    const bf16* x_0,
    const float* norm_1,
    bf16* out_0,
    const Counts* counts) {
  grid_wait();
  const int row = blockIdx.x;
  if (row >= counts->tokens) return;
  const bf16* x_0_row = row_of(x_0, row, 1152);
  bf16* out_0_row = row_of(out_0, row, 1152);
  LLMC_SMEM(smem);
  float* shared_0 = reinterpret_cast<float*>(smem + 0);
  float kept_0[1][8];
  // 576 elements, 8 to a thread at once
  float sum_total_1 = Sum::identity();
  {
    const int k = 0, j = threadIdx.x;
    if (j < 72) {
      const int i = j * 8;
      float x0[8];
      get8(x0, x_0_row + i);
      LLMC_UNROLL
      for (int e = 0; e < 8; e++) {
        const float v1 = x0[e];
        kept_0[k][e] = v1;
        const float v2 = (v1 * v1);
        sum_total_1 = Sum::of(sum_total_1, v2);
      }
    }
  }
  leave_total<Sum>(sum_total_1, shared_0);
  __syncthreads();
  const float total_1 = total_of<Sum, 4>(shared_0) / 576.0f;
  grid_launch_dependents();
  // 576 elements, 8 to a thread at once
  {
    const int k = 0, j = threadIdx.x;
    if (j < 72) {
      const int i = j * 8;
      const float v0 = (total_1 + 1e-05f);
      const float v1 = rsqrt_f32(v0);
      float x3[8];
      get8(x3, norm_1 + i);
      float y5[8];
      LLMC_UNROLL
      for (int e = 0; e < 8; e++) {
        const float v2 = (kept_0[k][e] * v1);
        const float v4 = (v2 * x3[e]);
        y5[e] = v4;
      }
      put8(out_0_row + i, y5);
    }
  }
}
LLMC_EXPORT(kernel)
