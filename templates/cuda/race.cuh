// race.cuh - the race that draws a token, as templates/cpu/race.h defines it: the same scores, bit for bit. Every thread
// has runners of its own; a warp passes over tokens that cannot beat the best of its threads.
#pragma once
#include "math.cuh"
#include "philox.cuh"
#include "sample_row.cuh"

// log of a positive normal number: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
LLMC_DEVICE double log_f64(double x) {
  const u64 half_root = 0x3fe6a09e667f3bcdull, u = double_bits(x) - half_root;
  const int e = int(u >> 32) >> 20;
  const double m = bits_double((u & 0xfffffffffffffull) + half_root);
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double p = 1.0 / 19.0;
  LLMC_UNROLL
  for (int odd = 17; odd > 0; odd -= 2) p = p * z + 1.0 / odd;
  return double(e) * 0.6931471805599453 + 2.0 * s * p;
}

LLMC_DEVICE u32 race_counter(int id) { return u32(id >> 6 << 4 | (id & 15)); }
// Word id / 16 % 4 of its counter, without an array in local memory.
LLMC_DEVICE u32 race_word(const Philox& r, int id) {
  const u32 even = id & 32 ? r.word[2] : r.word[0], odd = id & 32 ? r.word[3] : r.word[1];
  return id & 16 ? odd : even;
}

struct Leader {
  double score;
  int id;
  LLMC_DEVICE void take(double s, int i) {
    if (s > score || (s == score && i < id)) score = s, id = i;
  }
};

struct Race {
  const SampleRow& row;
  float largest, inverse;  // of x, and of the temperature
  Leader leader;           // of this thread
  float bound;             // what a token has to reach to beat the warp's leaders

  // Nobody is entered yet, and `token` nobody's id.
  LLMC_DEVICE Race(const SampleRow& row, float largest, int token)
      : row(row), largest(largest), inverse(1.0f / row.temperature), leader{-double(inf_f32()), token}, bound(-inf_f32()) {}
  LLMC_DEVICE Philox words(u32 counter, u32 draw) const {
    return philox(row.seed, Philox{{row.position, row.sample_index, counter, draw}});
  }
  LLMC_DEVICE double score(float x, int id) const {
    u64 r = 0;
    LLMC_NO_UNROLL
    for (u32 draw = 0; draw != 2; draw++) r = r << 32 | race_word(words(race_counter(id), draw), id);
    double t = 1.0 - (double(r >> 12) + 0.5) * (1.0 / 4503599627370496.0);
    LLMC_NO_UNROLL
    for (int twice = 0; twice != 2; twice++) t = -log_f64(t);
    return (double(x) - double(largest)) / double(row.temperature) + t;
  }
  LLMC_DEVICE float distance(float x) const { return (x - largest) * inverse; }
  // False: a token with this first word scores less than the bound. race.h says why.
  LLMC_DEVICE bool may_win(float x, u32 word) const {
    return fmaf(float(float_bits(float(word >> 8))), -8.2629582e-8f, distance(x) + 104.66523f) > bound;
  }
  LLMC_DEVICE void enter(float x, int id) { leader.take(score(x, id), id); }

  // Whole warps: the bound follows the best of their leaders, and stays below its score by the error of may_win().
  LLMC_DEVICE void share() {
    float best = float(leader.score);
    LLMC_UNROLL
    for (int bit = 16; bit; bit >>= 1) best = max_f32(best, __shfl_xor_sync(0xffffffffu, best, bit));
    bound = best - 1e-3f;
  }
  // Whole warps: tokens that are no larger lose, whatever their words: -log e is below 36.8.
  LLMC_DEVICE bool hopeless(float nearest) const {
    return __ballot_sync(0xffffffffu, distance(nearest) + 36.8f > bound) == 0;
  }
  // Whole warps: the leader of their threads.
  LLMC_DEVICE Leader warp_leader() const {
    Leader best = leader;
    LLMC_UNROLL
    for (int bit = 16; bit; bit >>= 1) {
      const double score = bits_double(__shfl_xor_sync(0xffffffffu, double_bits(best.score), bit));
      best.take(score, __shfl_xor_sync(0xffffffffu, best.id, bit));
    }
    return best;
  }
};
