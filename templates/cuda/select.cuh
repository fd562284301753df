// select.cuh - the token at which a sum over tokens, in the order (logit descending, id ascending), reaches a target:
// radix selection over digits of the order, without a sort. Every sum is an integer (a count, or weights in units of
// 2^-scale), so it is the same in whatever order threads add, and one histogram in shared memory serves all of them.
#pragma once
#include "math.cuh"

// A denormal counts as zero, as in the CPU's kernels (templates/cpu/threads.h).
LLMC_DEVICE float flushed(float x) { return abs_f32(x) < 1.17549435e-38f ? 0.0f : x; }

// A f32 as an integer of the same order; both zeros are equal.
LLMC_DEVICE u32 order_key(float x) {
  const u32 u = float_bits(x + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The exponent of units in which weights of this sum (at least 1), each at most 1, add up within 64 bits.
LLMC_DEVICE int scale_of(double total) { return 62 - (int(double_bits(total) >> 52) - 1023); }
LLMC_DEVICE double two_to(int scale) { return double(u64(1) << scale); }  // scale in 0..62
// w in units of 2^-scale; what is below one unit is cut off. w is 0 or normal, and at most 1.
LLMC_DEVICE u64 fixed_point(float w, int scale) {
  const int shift = int(float_bits(w) >> 23) - 150 + scale;
  const u64 mantissa = (float_bits(w) & 0x7fffffu) | 0x800000u;
  return mantissa << max_of(shift, 0) >> min_of(max_of(-shift, 0), 24);
}
// The least integer n with n >= x; x in [0, 2^63].
LLMC_DEVICE u64 reaching(double x) { return u64(x) + (double(u64(x)) < x); }

LLMC_DEVICE u64 warp_sum(u64 v) {
  LLMC_UNROLL
  for (int bit = 16; bit; bit >>= 1) v += __shfl_xor_sync(0xffffffffu, v, bit);
  return v;
}

// Which tokens are in the game: keys lowest..highest, of those with the lowest key ids up to last_id.
struct Kept {
  u32 highest, lowest;
  int last_id;
  LLMC_DEVICE bool has(u32 key, int id) const {
    return key <= highest && (key > lowest || (key == lowest && id <= last_id));
  }
};
LLMC_DEVICE Kept all_kept() { return {0xffffffffu, 0u, 0x7fffffff}; }

// 256 sums of 64 bits, in halves: shared memory adds 32 bits at a time.
struct Bins {
  u32 low[256], high[256];

  LLMC_DEVICE void add_one(u32 digit, u64 amount) {
    const u32 part = u32(amount), before = smem_atomic_add(smem_addr(&low[digit]), part);
    const u32 rest = u32(amount >> 32) + (before + part < part);
    if (rest) smem_atomic_add(smem_addr(&high[digit]), rest);
  }
  // All lanes of a warp together; those with nothing to add bring 0. Mostly their digits agree.
  LLMC_DEVICE void add(u32 digit, u64 amount) {
    const u32 first = __shfl_sync(0xffffffffu, digit, 0);
    if (__ballot_sync(0xffffffffu, digit == first || amount == 0) == 0xffffffffu) {
      amount = warp_sum(amount);
      if ((threadIdx.x & 31) == 0 && amount) add_one(first, amount);
    } else if (amount) {
      add_one(digit, amount);
    }
  }
  LLMC_DEVICE u64 sum(int digit) const { return u64(high[digit]) << 32 | low[digit]; }

  // By one warp: the digit, from 255 down, at which above + its sum and those before it reach target, or -1; adds to
  // `above` the sums before it. The lane that finds it returns true (lane 0 where none does).
  LLMC_DEVICE bool find(u64 target, int& digit, u64& above) const {
    const int lane = threadIdx.x & 31;
    u64 mine = 0;
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) mine += sum(lane * 8 + i);
    u64 up_to_me = mine;  // of this lane's bins and all higher ones
    LLMC_UNROLL
    for (int step = 16; step; step >>= 1) {
      const u64 other = __shfl_down_sync(0xffffffffu, up_to_me, step);
      up_to_me += lane + step < 32 ? other : 0;
    }
    u64 before = above + up_to_me - mine;
    const bool hit = before < target && before + mine >= target;
    const bool none = __ballot_sync(0xffffffffu, hit) == 0;
    digit = -1;
    for (int i = 7; hit && digit < 0; i--) {
      if (before + sum(lane * 8 + i) >= target) digit = lane * 8 + i;
      else before += sum(lane * 8 + i);
    }
    above = before;
    return hit || (none && lane == 0);
  }
};
