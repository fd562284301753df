// kv.cuh - where keys and values lie in the pool of cache blocks. A block holds 32 positions of one sequence in every
// attention layer; a layer's bytes inside it are its slot: keys [HKV][32][kDk], then values [HKV][32][kDv], head
// dimensions padded with zeros to whole MMA steps of 16. Its twin in Python is codegen/cuda/plan/kv.py.
#pragma once
#include "device.cuh"

constexpr int kKvBlock = 32;  // positions of a cache block

// HKV heads of D key and DV value elements, bf16 or f16. Addresses are 64-bit: a pool exceeds 2^31 bytes.
template <typename T, int HKV, int D, int DV>
struct KvSlot {
  static constexpr int kDk = (D + 15) / 16 * 16, kDv = (DV + 15) / 16 * 16;
  static_assert(sizeof(T) == 2, "bf16 or f16");

  unsigned char* pool;    // of all blocks
  long long block_bytes;  // from one block to the next
  long long offset;       // of this slot inside a block; a multiple of 32

  // First of the kDk (kDv) elements of one position: `token` is position % kKvBlock, `block` an entry of a block table.
  LLMC_DEVICE T* key(int block, int head, int token) const {
    return at(block) + (long long)(head * kKvBlock + token) * kDk;
  }
  LLMC_DEVICE T* value(int block, int head, int token) const {
    return at(block) + (long long)(HKV * kKvBlock) * kDk + (long long)(head * kKvBlock + token) * kDv;
  }

 private:
  LLMC_DEVICE T* at(int block) const { return reinterpret_cast<T*>(pool + block * block_bytes + offset); }
};
