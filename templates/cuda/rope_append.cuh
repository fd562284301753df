// rope_append.cuh - rotary embedding (half-split pairs, as HF's rotate_half) of fresh queries and keys, and the
// append of keys and values to the paged cache. One thread per pair of dimensions.
#pragma once
#include "device.cuh"

// qkv [T, (Hq + 2*Hkv), D] in: q rotated in place is written to q_out [T, Hq, D]; k, v go to the cache
// [pages][Hkv, PAGE, D], `page_stride` elements from page to page. cos, sin f32 [max_position, D/2]; position [T]; slot [T] = page * PAGE + offset.
// Grid (Hq + 2*Hkv, T), block D/2.
template <int D, int PAGE>
LLMC_DEVICE void rope_append(const bf16* qkv, const float* cosine, const float* sine, const int* position,
                             const int* slot, bf16* q_out, bf16* k_cache, bf16* v_cache, int page_stride, int num_heads,
                             int num_kv_heads) {
  const int i = threadIdx.x, head = blockIdx.x, token = blockIdx.y;
  grid_wait();
  const bf16* x = qkv + (size_t(token) * gridDim.x + head) * D;
  const float a = to_f32(x[i]), b = to_f32(x[i + D / 2]);
  const bool is_value = head >= num_heads + num_kv_heads;
  const float c = is_value ? 1.0f : cosine[position[token] * (D / 2) + i];
  const float s = is_value ? 0.0f : sine[position[token] * (D / 2) + i];
  bf16* to;
  if (head < num_heads) {
    to = q_out + (size_t(token) * num_heads + head) * D;
  } else {
    const int kv_head = (head - num_heads) % num_kv_heads, page = slot[token] / PAGE, offset = slot[token] % PAGE;
    to = (is_value ? v_cache : k_cache) + size_t(page) * page_stride + size_t(kv_head * PAGE + offset) * D;
  }
  grid_launch_dependents();
  to[i] = to_bf16(a * c - b * s);
  to[i + D / 2] = to_bf16(b * c + a * s);
}
