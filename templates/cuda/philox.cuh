// philox.cuh - Philox4x32-10 (Salmon et al., SC11): the random numbers of templates/cpu/philox.h, bit for bit.
#pragma once
#include "device.cuh"

struct Philox { u32 word[4]; };

LLMC_DEVICE Philox philox(u64 key, Philox counter) {
  u32 k0 = u32(key), k1 = u32(key >> 32);
  LLMC_UNROLL
  for (int round = 0; round < 10; round++) {
    const u64 a = u64(0xD2511F53u) * counter.word[0], b = u64(0xCD9E8D57u) * counter.word[2];
    counter = {{u32(b >> 32) ^ counter.word[1] ^ k0, u32(b), u32(a >> 32) ^ counter.word[3] ^ k1, u32(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}
