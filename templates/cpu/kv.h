// A KV pool: blocks of BLOCK positions; inside a block, for every slot (attention layer), for every kv head: K, then V.
// Each KV group (layers that keep the same positions) has a pool.
//   KvBf16  K bf16 [2][d/2][16][2]: 16 positions side by side, d in pairs     V bf16 [16][dv][2]: positions in pairs
//   KvF32   K f32  [2][d][16]                                                V f32  [32][dv]
// so that scores need no horizontal sum and values no shuffle. d is padded to 2 with zero (KvBf16), dv to 16.
// A position's values are undefined until kv_write.
// Block b starts at pool + b * block_bytes: 64-bit arithmetic.
#pragma once
#include "operand.h"

namespace llmc {

constexpr int BLOCK = 32;  // positions of a KV block

struct KvBf16 {
  static constexpr int64_t k_bytes(int64_t d) { return BLOCK * round_up(d, 2) * 2; }
  static constexpr int64_t v_bytes(int64_t dv) { return BLOCK * round_up(dv, 16) * 2; }
};
struct KvF32 {
  static constexpr int64_t k_bytes(int64_t d) { return BLOCK * d * 4; }
  static constexpr int64_t v_bytes(int64_t dv) { return BLOCK * round_up(dv, 16) * 4; }
};

template <class Kv> struct KvSlot {
  int64_t offset;  // of this slot inside a block, 64-byte aligned
  int heads, d, dv;
  constexpr int64_t head_bytes() const { return Kv::k_bytes(d) + Kv::v_bytes(dv); }
  constexpr int64_t bytes() const { return heads * head_bytes(); }
};

// A group's pool as one step sees it. Entries of blocks behind the window of a sequence's first token are undefined.
struct KvPool {
  uint8_t* base;
  int64_t block_bytes;
  const int32_t* tables;  // [num_seqs, table_stride] block ids
  int64_t table_stride;
  // Block that holds `position` of sequence seq.
  inline __attribute__((always_inline)) uint8_t* block(int64_t seq, int64_t position) const {
    return base + tables[seq * table_stride + position / BLOCK] * block_bytes;
  }
};

LLMC_INLINE void write_head(KvBf16, const float* k, const float* v, int d, int dv, int at, uint8_t* head) {
  uint32_t* kk = (uint32_t*)head + (int64_t)(at / 16) * round_up(d, 2) * 8 + at % 16;
  uint16_t* vv = (uint16_t*)(head + KvBf16::k_bytes(d)) + (int64_t)(at / 2) * round_up(dv, 16) * 2 + at % 2;
  uint32_t pairs[8];
  uint16_t values[16];
  for (int i = 0; i < d; i += 16) {
    store_bf16((uint16_t*)pairs, load(k + i, d - i));
    for (int j = 0; j < 8 && i + 2 * j < d; ++j) kk[(i / 2 + j) * 16] = pairs[j];
  }
  for (int i = 0; i < dv; i += 16) {
    store_bf16(values, load(v + i, dv - i));
    for (int j = 0; j < 16; ++j) vv[2 * (i + j)] = values[j];
  }
}
LLMC_INLINE void write_head(KvF32, const float* k, const float* v, int d, int dv, int at, uint8_t* head) {
  float* kk = (float*)head + (int64_t)(at / 16) * d * 16 + at % 16;
  for (int i = 0; i < d; ++i) kk[i * 16] = k[i];
  float* vv = (float*)(head + KvF32::k_bytes(d)) + at * round_up(dv, 16);
  for (int i = 0; i < dv; ++i) vv[i] = v[i];
}

// Writes one token's K [heads * d] and V [heads * dv] rows to its place.
template <class Kv>
inline void kv_write(const KvPool& pool, const KvSlot<Kv>& slot, int64_t seq, int64_t position, const float* k,
                     const float* v) {
  uint8_t* head = pool.block(seq, position) + slot.offset;
  for (int h = 0; h < slot.heads; ++h, head += slot.head_bytes(), k += slot.d, v += slot.dv)
    write_head(Kv{}, k, v, slot.d, slot.dv, (int)(position % BLOCK), head);
}

}  // namespace llmc
