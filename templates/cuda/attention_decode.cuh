// attention_decode.cuh - one query token per sequence against a paged KV cache, the context cut into splits of
// fixed size (so the order of sums never depends on the batch), and the kernel that combines the splits.
// After FlashDecoding (Dao et al. 2023): online softmax in base 2, one (m, l, o) per split.
#pragma once
#include "device.cuh"

// D/8 lanes share one token (16 bytes each); a warp works on 256/D tokens at a time, a block's four warps
// interleave. Every lane keeps the softmax state of its own tokens; states meet in shared memory, in order.
template <int D, int GROUP, int PAGE, int SPLIT>
struct DecodeAttention {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kLanes = D / 8, kTokens = 32 / kLanes;
  static constexpr int kStates = kWarps * kTokens;
  static constexpr int kSmemBytes = kStates * GROUP * (D + 2) * 4;
  static_assert(SPLIT % PAGE == 0 && (D == 64 || D == 128), "a split is whole pages");

  // q [B, Hkv*GROUP, D]; k, v [pages, Hkv, PAGE, D]; table [B, max_pages]; len [B];
  // o f32 [B, Hkv*GROUP, max_splits, D]; ml f32 [B, Hkv*GROUP, max_splits, 2]. Grid (max_splits, Hkv, B).
  static LLMC_DEVICE void run(const bf16* q, const bf16* k, const bf16* v, const int* table, const int* len, float* o,
                              float* ml, int num_kv_heads, int max_pages, float scale_log2) {
    LLMC_SMEM(raw);
    float* states = reinterpret_cast<float*>(raw);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane % kLanes, slot = lane / kLanes;
    const int split = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
    grid_wait();
    const int begin = split * SPLIT, context = len[b], end = begin + SPLIT < context ? begin + SPLIT : context;
    if (begin >= end) return;
    float qr[GROUP][8], acc[GROUP][8] = {}, m[GROUP], l[GROUP];
    const size_t first = size_t(b) * num_kv_heads * GROUP + head * GROUP;
    LLMC_UNROLL
    for (int g = 0; g < GROUP; g++) {
      const Vec16 x = load16(q + (first + g) * D + part * 8);
      LLMC_UNROLL
      for (int j = 0; j < 4; j++) qr[g][2 * j] = bf16_lo(x.x[j]) * scale_log2, qr[g][2 * j + 1] = bf16_hi(x.x[j]) * scale_log2;
      m[g] = -1e30f, l[g] = 0.0f;
    }
    for (int base = begin; base < end; base += kStates) {
      const int token = base + warp * kTokens + slot;
      const bool valid = token < end;
      const int at = valid ? token : begin;
      const size_t row = ((size_t(table[b * max_pages + at / PAGE]) * num_kv_heads + head) * PAGE + at % PAGE) * D + part * 8;
      const Vec16 kx = load16_stream(k + row), vx = load16_stream(v + row);
      LLMC_UNROLL
      for (int g = 0; g < GROUP; g++) {
        float s = 0.0f;
        LLMC_UNROLL
        for (int j = 0; j < 4; j++) s += qr[g][2 * j] * bf16_lo(kx.x[j]) + qr[g][2 * j + 1] * bf16_hi(kx.x[j]);
        LLMC_UNROLL
        for (int bit = kLanes / 2; bit; bit >>= 1) s += __shfl_xor_sync(0xffffffffu, s, bit);
        if (valid) {
          const float top = s > m[g] ? s : m[g], keep = exp2_approx(m[g] - top), p = exp2_approx(s - top);
          l[g] = l[g] * keep + p;
          LLMC_UNROLL
          for (int j = 0; j < 4; j++) {
            acc[g][2 * j] = acc[g][2 * j] * keep + p * bf16_lo(vx.x[j]);
            acc[g][2 * j + 1] = acc[g][2 * j + 1] * keep + p * bf16_hi(vx.x[j]);
          }
          m[g] = top;
        }
      }
    }
    LLMC_UNROLL
    for (int g = 0; g < GROUP; g++) {
      float* mine = states + ((warp * kTokens + slot) * GROUP + g) * (D + 2);
      LLMC_UNROLL
      for (int j = 0; j < 8; j++) mine[part * 8 + j] = acc[g][j];
      if (part == 0) mine[D] = m[g], mine[D + 1] = l[g];
    }
    __syncthreads();
    grid_launch_dependents();
    for (int i = threadIdx.x; i < GROUP * D; i += kThreads) {
      const int g = i / D, d = i % D;
      float top = -1e30f, sum = 0.0f, out = 0.0f;
      for (int s = 0; s < kStates; s++) {
        const float x = states[(s * GROUP + g) * (D + 2) + D];
        top = x > top ? x : top;
      }
      for (int s = 0; s < kStates; s++) {
        const float* other = states + (s * GROUP + g) * (D + 2);
        const float weight = exp2_approx(other[D] - top);
        sum += weight * other[D + 1];
        out += weight * other[d];
      }
      const size_t at = (first + g) * gridDim.x + split;
      o[at * D + d] = out;
      if (d == 0) ml[at * 2] = top, ml[at * 2 + 1] = sum;
    }
  }

  // out [B, H, D]; grid (H, B), block D. Splits in order.
  static LLMC_DEVICE void combine(const float* o, const float* ml, const int* len, bf16* out, int max_splits) {
    const int d = threadIdx.x;
    const size_t row = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
    grid_wait();
    const int splits = (len[blockIdx.y] + SPLIT - 1) / SPLIT;
    float top = -1e30f, sum = 0.0f, acc = 0.0f;
    for (int s = 0; s < splits; s++) {
      const float x = ml[(row * max_splits + s) * 2];
      top = x > top ? x : top;
    }
    for (int s = 0; s < splits; s++) {
      const float weight = exp2_approx(ml[(row * max_splits + s) * 2] - top);
      sum += weight * ml[(row * max_splits + s) * 2 + 1];
      acc += weight * o[(row * max_splits + s) * D + d];
    }
    grid_launch_dependents();
    out[row * D + d] = to_bf16(acc * rcp_approx(sum));
  }
};
