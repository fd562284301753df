// Philox4x32-10 (Salmon et al., SC11): four random words as a function of a key and a counter.
#pragma once
#include "simd.h"

namespace llmc {

struct Philox { uint32_t word[4]; };

inline Philox philox(uint64_t key, Philox counter) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), *c = counter.word;
  for (int round = 0; round < 10; ++round) {
    uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// The same for a counter in each lane.
struct Philox16 { i32x16 word[4]; };

LLMC_INLINE Philox16 philox16(uint64_t key, Philox16 counter) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  i32x16* c = counter.word;
  LLMC_UNROLL for (int round = 0; round < 10; ++round) {
    const Products a = multiply_u32(c[0], 0xD2511F53u), b = multiply_u32(c[2], 0xCD9E8D57u);
    counter = {{xor_i32(xor_i32(b.high, c[1]), splat_i32((int32_t)k0)), b.low,
                xor_i32(xor_i32(a.high, c[3]), splat_i32((int32_t)k1)), a.low}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace llmc
