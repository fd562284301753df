// A KV pool: blocks of BLOCK positions; inside a block, for every slot (attention layer), for every kv head: K, then V.
// Each KV group (layers that keep the same positions) has a pool.
//   KvBf16  K bf16 [2][d/2][16][2]: 16 positions side by side, d in pairs     V bf16 [16][dv][2]: positions in pairs
//   KvF32   K f32  [2][d][16]                                                V f32  [32][dv]
//   Kv8     K twice: codes [d/4][16][4], d in fours, then f32 scales [16]    V codes [8][dv][4]: positions in fours,
//                                                                            then f32 scales [32]
// so that scores need no horizontal sum and values no shuffle. d is padded with zero to K_STEP, dv to 16.
// Kv8 holds bytes, int8 (KvInt8) or e4m3 (KvFp8), with a scale for each position and head of K and of V, largest |x| / 127
// or / 448: a scale of more than one position would depend on which positions came in one step.
// A position's values are undefined until kv_write.
// Block b starts at pool + b * block_bytes: 64-bit arithmetic.
#pragma once
#include "operand.h"

namespace llmc {

constexpr int BLOCK = 32;  // positions of a KV block

struct KvBf16 {
  static constexpr int K_STEP = 2;
  static constexpr bool SCALED = false;
  static constexpr int64_t k_bytes(int64_t d) { return BLOCK * round_up(d, 2) * 2; }
  static constexpr int64_t v_bytes(int64_t dv) { return BLOCK * round_up(dv, 16) * 2; }
};
struct KvF32 {
  static constexpr int K_STEP = 1;
  static constexpr bool SCALED = false;
  static constexpr int64_t k_bytes(int64_t d) { return BLOCK * d * 4; }
  static constexpr int64_t v_bytes(int64_t dv) { return BLOCK * round_up(dv, 16) * 4; }
};

template <bool FP8> struct Kv8 {
  static constexpr int K_STEP = 4;
  static constexpr bool SCALED = true;
  static constexpr float LARGEST = FP8 ? 448.0f : 127.0f;
  static constexpr int64_t k_codes(int64_t d) { return 16 * round_up(d, K_STEP); }  // of 16 positions
  static constexpr int64_t k_bytes(int64_t d) { return 2 * (k_codes(d) + 64); }
  static constexpr int64_t v_codes(int64_t dv) { return BLOCK * round_up(dv, 16); }
  static constexpr int64_t v_bytes(int64_t dv) { return v_codes(dv) + BLOCK * 4; }
};
using KvInt8 = Kv8<false>;
using KvFp8 = Kv8<true>;

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

// Sixteen f32 to codes, a byte in each lane: nearest even; at most LARGEST in size. What e4m3 has denormals for is zero.
template <bool FP8> LLMC_INLINE i32x16 kv_codes(f32x16 x) {
  if constexpr (!FP8) return and_i32(to_i32(x), splat_i32(0xff));
  const i32x16 u = bits(x), magnitude = bits(abs(x));
  const i32x16 odd = and_i32(shift_right<20>(magnitude), splat_i32(1));
  const i32x16 rounded = shift_right<20>(add_i32(add_i32(magnitude, odd), splat_i32(0x7ffff)));
  const i32x16 normal = sub_i32(rounded, splat_i32(120 << 3));      // exponents are biased by 7 instead of 127
  const i32x16 small = to_i32(abs(x) * 512.0f);                     // below 2^-6: steps of 2^-9
  const mask16 is_small = lt(abs(x), 0x1p-6f);
  const i32x16 found = bits(select(is_small, from_bits(small), from_bits(normal)));
  const i32x16 code = bits(select(lt_i32(found, splat_i32(8)), from_bits(splat_i32(0)), from_bits(found)));
  return or_i32(code, and_i32(shift_right<24>(u), splat_i32(0x80)));
}
// Byte J of each lane as f32.
template <bool FP8, int J> LLMC_INLINE f32x16 kv_values(i32x16 codes) {
  if constexpr (!FP8) return to_f32(shift_right<24>(shift_left<24 - 8 * J>(codes)));
  // The sign goes to the top, exponent and mantissa to where f32 has them; no code is a denormal.
  const i32x16 scaled = and_i32(shift_right<4>(shift_left<24 - 8 * J>(codes)), splat_i32((int32_t)0x87f00000u));
  return from_bits(scaled) * 0x1p120f;  // exponents are biased by 7 instead of 127
}

// One head's vector to bytes `stride` apart, four of each `run` bytes together; returns its scale, NaN where x is not finite.
template <bool FP8>
LLMC_INLINE float write_codes(const float* x, int n, int64_t padded, uint8_t* out, int run, int64_t stride) {
  f32x16 largest = splat(0.0f), bad = splat(0.0f);
  for (int i = 0; i < n; i += 16) {
    f32x16 v = load(x + i, n - i);
    largest = max_raw(largest, abs(v));
    bad = bad + (v - v);
  }
  const float m = reduce_max(largest), nan = reduce_add(bad);
  const bool zero = m < 1e-30f;
  const f32x16 inverse = splat(zero ? 0.0f : Kv8<FP8>::LARGEST / m);
  for (int64_t i = 0; i < padded; i += 16) {
    int32_t codes[16];
    store_i32(codes, kv_codes<FP8>(load(x + i, n - (int)i) * inverse));
    for (int64_t j = 0; j < 16 && i + j < padded; ++j) out[(i + j) / run * stride + (i + j) % run] = (uint8_t)codes[j];
  }
  return (zero ? 0.0f : m / Kv8<FP8>::LARGEST) + nan;
}
template <bool FP8>
LLMC_INLINE void write_head(Kv8<FP8>, const float* k, const float* v, int d, int dv, int at, uint8_t* head) {
  using Kv = Kv8<FP8>;
  uint8_t* kk = head + at / 16 * (Kv::k_codes(d) + 64);
  uint8_t* vv = head + Kv::k_bytes(d);
  const int64_t padded = round_up(dv, 16);
  ((float*)(kk + Kv::k_codes(d)))[at % 16] =
      write_codes<FP8>(k, d, round_up(d, Kv::K_STEP), kk + at % 16 * 4, Kv::K_STEP, 64);
  ((float*)(vv + Kv::v_codes(dv)))[at] = write_codes<FP8>(v, dv, padded, vv + at / 4 * padded * 4 + at % 4, 1, 4);
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
