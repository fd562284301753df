// Philox4x32-10 (Salmon et al., SC11): random numbers as a function of (seed, sample index, position).
#pragma once
#include <stdint.h>

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

// The draw of one token: uniform in [0, 1) with 53 bits, from counter {position, sample_index, 0, 0}.
inline double token_draw(uint64_t seed, uint32_t sample_index, uint32_t position) {
  Philox r = philox(seed, Philox{{position, sample_index, 0, 0}});
  uint64_t bits = ((uint64_t)r.word[1] << 32 | r.word[0]) >> 11;
  return (double)bits * (1.0 / 9007199254740992.0);
}

}  // namespace llmc
