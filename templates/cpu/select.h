// Which tokens stay: a cut through the order (logit descending, id ascending), found by radix selection, without a sort.
#pragma once
#include "simd.h"

namespace llmc {

// A f32 as an integer of the same order; both zeros are equal.
LLMC_INLINE uint32_t order_key(float x) {
  uint32_t u = float_bits(x + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct Cut {
  uint32_t key;     // tokens with a larger key stay, and of those with this key the ids up to last_id
  int32_t last_id;
  LLMC_INLINE Cut everything() { return {0, INT32_MAX}; }
  inline __attribute__((always_inline)) bool keeps(uint32_t k, int32_t id) const {
    return k > key || (k == key && id <= last_id);
  }
};

// The shortest prefix of `within` whose measure(id), added up, reaches target (or all of `within`).
template <class Measure>
inline Cut shortest_prefix(const float* x, int n, Cut within, double target, Measure measure) {
  constexpr int SHIFT[3] = {21, 10, 0}, BITS[3] = {11, 11, 10};
  double sums[1 << 11], above = 0.0;
  uint32_t key = 0, fixed = 0;  // the bits of the cut's key found so far, and which they are
  for (int level = 0; level < 3; ++level) {
    const uint32_t digits = 1u << BITS[level];
    for (uint32_t d = 0; d < digits; ++d) sums[d] = 0.0;
    for (int i = 0; i < n; ++i) {
      uint32_t k = order_key(x[i]);
      if ((k & fixed) == key && within.keeps(k, i)) sums[k >> SHIFT[level] & (digits - 1)] += measure(i);
    }
    uint32_t d = digits - 1;
    while (d > 0 && above + sums[d] < target) above += sums[d--];
    if (d == 0 && above + sums[0] < target) return within;
    key |= d << SHIFT[level];
    fixed |= (digits - 1) << SHIFT[level];
  }
  for (int i = 0; i < n; ++i)
    if (order_key(x[i]) == key && within.keeps(key, i)) {
      above += measure(i);
      if (above >= target) return {key, i};
    }
  return within;
}

}  // namespace llmc
