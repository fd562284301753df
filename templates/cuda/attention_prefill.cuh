// attention_prefill.cuh - causal attention of many query tokens per sequence against a paged KV cache, ragged
// over sequences: FlashAttention-2 (Dao 2023) with mma.sync. A block owns 64 query rows of one head, a warp 16;
// keys and values stream through two stages of 64 tokens.
#pragma once
#include "device.cuh"

template <int D, int GROUP, int PAGE>
struct PrefillAttention {
  static constexpr int kBQ = 64, kBKV = 64, kWarps = 4, kThreads = 128, kChunks = D / 8;
  static constexpr u32 kTileBytes = 64 * D * 2, kSmemBytes = kTileBytes * 5;  // q, 2 x (k, v)
  static_assert(D == 64 || D == 128, "head_dim");

  static LLMC_DEVICE u32 offset(int row, int chunk) { return u32(row * D * 2 + ((chunk ^ (row & 7)) << 4)); }

  // q, out [T, Hkv*GROUP, D]; k, v [pages, Hkv, PAGE, D]; starts [B+1] first query row of each sequence;
  // table [B, max_pages]; len [B] tokens in the cache, the queries' own included. Grid (max tiles, Hq, B).
  static LLMC_DEVICE void run(const bf16* q, const bf16* k, const bf16* v, const int* starts, const int* table,
                              const int* len, bf16* out, int num_kv_heads, int max_pages, float scale_log2) {
    LLMC_SMEM(raw);
    const u32 sq = smem_addr(raw), skv = sq + kTileBytes;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y, b = blockIdx.z;
    const int heads = num_kv_heads * GROUP, kv_head = head / GROUP;
    grid_wait();
    const int start = starts[b], rows = starts[b + 1] - start, q0 = blockIdx.x * kBQ;
    if (q0 >= rows) return;
    const int context = len[b], shift = context - rows;  // query row i sees keys 0 .. shift + i
    const int last = shift + (q0 + kBQ < rows ? q0 + kBQ : rows), tiles = (last + kBKV - 1) / kBKV;

    auto fetch_q = [&] {
      LLMC_UNROLL
      for (int i = 0; i < 64 * kChunks / kThreads; i++) {
        const int c = int(threadIdx.x) + i * kThreads, row = c / kChunks, chunk = c % kChunks;
        const bool valid = q0 + row < rows;
        cp_async16(sq + offset(row, chunk), q + (size_t(start + (valid ? q0 + row : 0)) * heads + head) * D + chunk * 8, valid);
      }
    };
    auto fetch_kv = [&](int tile) {
      if (tile < tiles) {
        const u32 sk = skv + u32(tile & 1) * 2 * kTileBytes;
        LLMC_UNROLL
        for (int i = 0; i < 64 * kChunks / kThreads; i++) {
          const int c = int(threadIdx.x) + i * kThreads, row = c / kChunks, chunk = c % kChunks, token = tile * kBKV + row;
          const bool valid = token < context;
          const int at = valid ? token : 0;
          const size_t from = ((size_t(table[b * max_pages + at / PAGE]) * num_kv_heads + kv_head) * PAGE + at % PAGE) * D + chunk * 8;
          cp_async16(sk + offset(row, chunk), k + from, valid);
          cp_async16(sk + kTileBytes + offset(row, chunk), v + from, valid);
        }
      }
      cp_async_commit();
    };

    float acc[D / 8][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0.0f, 0.0f};
    u32 qa[D / 16][4];
    fetch_q();
    fetch_kv(0);  // one group with the queries
    for (int tile = 0; tile < tiles; tile++) {
      fetch_kv(tile + 1);
      cp_async_wait<1>();
      __syncthreads();
      const u32 sk = skv + u32(tile & 1) * 2 * kTileBytes, sv = sk + kTileBytes;
      if (tile == 0) {
        LLMC_UNROLL
        for (int d = 0; d < D / 16; d++) ldmatrix_x4(qa[d], sq + offset(warp * 16 + (lane & 15), d * 2 + (lane >> 4)));
      }
      float s[kBKV / 8][4] = {};
      LLMC_UNROLL
      for (int d = 0; d < D / 16; d++)
        LLMC_UNROLL
        for (int n = 0; n < kBKV / 16; n++) {
          u32 kb[4];
          ldmatrix_x4(kb, sk + offset(n * 16 + (lane & 7) + (lane >> 4) * 8, d * 2 + (lane >> 3 & 1)));
          mma_bf16(s[2 * n], qa[d], kb[0], kb[1]);
          mma_bf16(s[2 * n + 1], qa[d], kb[2], kb[3]);
        }
      softmax(s, acc, m, l, shift + q0 + warp * 16 + (lane >> 2), tile * kBKV + (lane & 3) * 2, context, scale_log2);
      LLMC_UNROLL
      for (int n = 0; n < kBKV / 16; n++) {
        const u32 p[4] = {pack_bf16(s[2 * n][0], s[2 * n][1]), pack_bf16(s[2 * n][2], s[2 * n][3]),
                          pack_bf16(s[2 * n + 1][0], s[2 * n + 1][1]), pack_bf16(s[2 * n + 1][2], s[2 * n + 1][3])};
        LLMC_UNROLL
        for (int d = 0; d < D / 16; d++) {
          u32 vb[4];
          ldmatrix_x4_trans(vb, sv + offset(n * 16 + (lane & 15), d * 2 + (lane >> 4)));
          mma_bf16(acc[2 * d], p, vb[0], vb[1]);
          mma_bf16(acc[2 * d + 1], p, vb[2], vb[3]);
        }
      }
      __syncthreads();  // the next fetch overwrites the stage just read
    }
    grid_launch_dependents();
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      float sum = l[h];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = rcp_approx(sum);
      const int row = q0 + warp * 16 + (lane >> 2) + h * 8;
      if (row < rows) {
        LLMC_UNROLL
        for (int d = 0; d < D / 8; d++)
          store4(out + (size_t(start + row) * heads + head) * D + d * 8 + (lane & 3) * 2,
                 pack_bf16(acc[d][h * 2] * inverse, acc[d][h * 2 + 1] * inverse));
      }
    }
  }

  // Masks, scales and exponentiates one tile of scores; rescales what has been accumulated. `row` and `col` are
  // the positions of s[0][0]; rows row and row+8 belong to this thread, shared by the four lanes of a quad.
  static LLMC_DEVICE void softmax(float (&s)[kBKV / 8][4], float (&acc)[D / 8][4], float (&m)[2], float (&l)[2], int row,
                                  int col, int context, float scale_log2) {
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      const int limit = row + h * 8 < context ? row + h * 8 : context - 1;
      float top = m[h];
      LLMC_UNROLL
      for (int n = 0; n < kBKV / 8; n++)
        LLMC_UNROLL
        for (int e = 0; e < 2; e++) {
          float& x = s[n][h * 2 + e];
          x = col + n * 8 + e <= limit ? x * scale_log2 : -1e30f;
          top = x > top ? x : top;
        }
      LLMC_UNROLL
      for (int bit = 1; bit <= 2; bit <<= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, top, bit);
        top = other > top ? other : top;
      }
      const float keep = exp2_approx(m[h] - top);
      m[h] = top;
      l[h] *= keep;
      LLMC_UNROLL
      for (int n = 0; n < kBKV / 8; n++)
        LLMC_UNROLL
        for (int e = 0; e < 2; e++) {
          s[n][h * 2 + e] = exp2_approx(s[n][h * 2 + e] - top);
          l[h] += s[n][h * 2 + e];
        }
      LLMC_UNROLL
      for (int d = 0; d < D / 8; d++) acc[d][h * 2] *= keep, acc[d][h * 2 + 1] *= keep;
    }
  }
};
