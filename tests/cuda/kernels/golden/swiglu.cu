// kernel: y[T, 96] of x[T, 64], K in 1 slices of 64
//
// params   shape, tile, counted, warps_out, warps_tokens, stages, epilogue
// abi      (x bf16[T, 64],
//           w bf16[192, 64],
//           counts Counts[1],
//           out bf16[T, 96])
// launch   grid (3, ceil(T/8), 1), block 128, dynamic shared memory 18448 B
// limits   rows of x and w 128 bytes apart, those of w zero behind column 64; pointers 16-byte aligned
// numerics f32 sums in steps of 16 along K from zero inside a slice, then slices in order: one order for all T
#include "linear_mma.cuh"

struct Epilogue {
  bf16* out;  // bf16[T, 96]
  static constexpr bool kGated = true;
  static constexpr int kWidth = 96, kVector = 8;

  // Columns col .. col+V-1 of one row; a, b: sums of gate and up.
  template <int V>
  LLMC_DEVICE void finish(int row, int col, const float (&a)[V], const float (&b)[V]) const {
    float result[V];
    LLMC_UNROLL
    for (int i = 0; i < V; i++) {
      const float v0 = silu_f32(a[i]);
      const float v1 = (v0 * b[i]);
      result[i] = v1;
    }
    store_columns(row_at(out, row, 192) + col, result);
  }
};

using Shape = LinearShape<bf16, 192, 64, 64, false, 64, 8, CountedBy::kTokens>;

LLMC_KERNEL(128, 4) kernel(
    const bf16* x, const bf16* w, const Counts* counts, bf16* out) {
  LinearMma<Shape, 4, 1, 2, Epilogue>::run(
      x, w, counts, Epilogue{out}, nullptr, nullptr);
}
LLMC_EXPORT(kernel)
