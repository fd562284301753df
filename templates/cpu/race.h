// Which of the tokens that take part is drawn: an exponential race. Each token runs with a time of its own, drawn for
// (seed, sample index, position, id) and divided by its weight, and the first one there is the token. It wins with the
// probability of its weight, whoever else runs; those whom a filter keeps out change nothing for the others; and two
// models that nearly agree mostly draw the same token.
//
//   Race race(sampling, x, largest, leader);  // leader: a token that takes part, best the likeliest
//   race.run(x, valid, takes_part);           // or run_listed(x, ids, count, takes_part)
//   race.leader
//
// numerics
//   r(draw) of an id = word id / 16 % 4 of Philox4x32-10, key seed, counter {position, sample_index, c, draw} with
//     c = id / 64 * 16 + id % 16: sixteen neighbouring ids are one word of sixteen neighbouring counters
//   n = the upper 52 bits of r(0) * 2^32 + r(1); v = (n + 1/2) / 2^52, never 0 nor 1; its time e = -log(1 - v)
//   score = (x - max x) / temperature - log e, the largest wins, equal ones the lowest id; from x on all in f64, by plain
//     operations in one order: the same bits on every target, with or without fused multiply-adds
//   Most tokens are passed over by a bound on their score in f32, which is never too low.
#pragma once
#include "abi.h"
#include "philox.h"

namespace llmc {

// log of a positive normal number: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
inline double log_f64(double x) {
  const uint64_t half_root = 0x3fe6a09e667f3bcdull, u = __builtin_bit_cast(uint64_t, x) - half_root;
  const int32_t e = (int32_t)(uint32_t)(u >> 32) >> 20;
  const double m = __builtin_bit_cast(double, (u & 0xfffffffffffffull) + half_root);
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double p = 1.0 / 19.0;
  LLMC_UNROLL for (int odd = 17; odd > 0; odd -= 2) p = p * z + 1.0 / odd;
  return (double)e * 0.6931471805599453 + 2.0 * s * p;
}

inline int32_t race_counter(int32_t id) { return id / 64 * 16 + id % 16; }
inline i32x16 race_counters(i32x16 ids) {
  return or_i32(shift_left<4>(shift_right<6>(ids)), and_i32(ids, splat_i32(15)));
}

struct Race {
  const LlmcSampling& s;
  float largest, inverse;  // of x, and of the temperature
  int32_t leader;
  double best;  // the leader's score

  // Above the largest -log e, that of the least v; and above the error of reach().
  static constexpr float HIGHEST = 36.8f, SLACK = 1e-3f;

  Race(const LlmcSampling& sampling, const float* x, float largest_x, int32_t first)
      : s(sampling), largest(largest_x), inverse(1.0f / sampling.temperature), leader(first), best(score(x[first], first)) {}

  double score(float x, int32_t id) const {
    const uint32_t c = (uint32_t)race_counter(id);
    const int word = id / 16 % 4;
    const uint64_t high = philox(s.seed, Philox{{s.position, s.sample_index, c, 0}}).word[word];
    const uint64_t low = philox(s.seed, Philox{{s.position, s.sample_index, c, 1}}).word[word];
    const double v = ((double)(high << 20 | low >> 12) + 0.5) * (1.0 / 4503599627370496.0);
    return ((double)x - (double)largest) / (double)s.temperature - log_f64(-log_f64(1.0 - v));
  }
  void enter(float x, int32_t id) {
    const double mine = score(x, id);
    if (!(mine > best || (mine == best && id < leader))) return;
    best = mine;
    leader = id;
  }

  f32x16 distance(f32x16 x) const { return (x - largest) * inverse; }
  // At least the score of tokens with these words r(0): -log e <= -log v, and log v is at least that of v's first 24 bits,
  // of which log2(2^e (1 + m)) >= e + m. No bit at all reads as v = 2^-151, which is below the least.
  static f32x16 reach(f32x16 x, i32x16 words) {
    const f32x16 first = to_f32(and_i32(shift_right<8>(words), splat_i32(0x00ffffff)));
    return fma(to_f32(bits(first)), -8.2629582e-8f, x + 104.66523f);  // (127 + 24) log 2 - log 2 / 2^23 * bits
  }
  uint32_t may_win(f32x16 reached) const { return lane_bits(gt(reached, (float)best - SLACK)); }

  i32x16 constant(uint32_t x) const { return splat_i32((int32_t)x); }
  Philox16 words(i32x16 counters) const {
    return philox16(s.seed, Philox16{{constant(s.position), constant(s.sample_index), counters, constant(0)}});
  }

  // Ids 0 .. valid-1, those of which takes_part(id) holds.
  template <class TakesPart> void run(const float* x, int valid, TakesPart takes_part) {
    for (int i = 0; i < valid; i += 64) {
      f32x16 y[4];
      LLMC_UNROLL for (int w = 0; w < 4; ++w) {
        const int at = i + 16 * w;
        y[w] = select(first_lanes(valid - at), distance(load(x + at, valid - at)), -__builtin_inff());
      }
      const f32x16 nearest = max_raw(max_raw(y[0], y[1]), max_raw(y[2], y[3]));
      if (!may_win(nearest + HIGHEST)) continue;
      const Philox16 r = words(add_i32(splat_i32(i / 4), lane_ids()));
      LLMC_UNROLL for (int w = 0; w < 4; ++w)
        for (uint32_t hits = may_win(reach(y[w], r.word[w])); hits; hits &= hits - 1) {
          const int id = i + 16 * w + __builtin_ctz(hits);
          if (takes_part(id)) enter(x[id], id);
        }
    }
  }

  // Tokens x[j], ids[j] of which takes_part(j) holds; both arrays are padded to sixteen.
  template <class TakesPart> void run_listed(const float* x, const int32_t* ids, int count, TakesPart takes_part) {
    for (int i = 0; i < count; i += 16) {
      const i32x16 id = load_i32(ids + i), which = and_i32(id, splat_i32(48));
      const Philox16 r = words(race_counters(id));
      f32x16 word = from_bits(r.word[3]);
      LLMC_UNROLL for (int w = 2; w >= 0; --w)
        word = select(lt_i32(which, splat_i32(16 * (w + 1))), from_bits(r.word[w]), word);
      uint32_t hits = may_win(reach(distance(load(x + i)), bits(word)));
      if (count - i < 16) hits &= (1u << (count - i)) - 1;
      for (; hits; hits &= hits - 1) {
        const int j = i + __builtin_ctz(hits);
        if (takes_part(j)) enter(x[j], ids[j]);
      }
    }
  }
};

}  // namespace llmc
