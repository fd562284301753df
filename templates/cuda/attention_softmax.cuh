// attention_softmax.cuh - the arithmetic of attention between its two products. Prefill and decode call the same
// functions on the same operands in the same order, so that a query row has the same bits in either. What multiplies and
// adds in one rounding says fmaf.
//
// A score y is the product q.k, through tanh where scores are capped; `unit` turns it into base-2 logits. Keys are cut
// into splits of fixed size from position 0. A split has, per query row, the maximum of its scores, the sum of
// exp2((y - maximum) * unit) and the values weighted so; splits are folded in order. A split of which a row sees no key
// leaves that row's bits alone, so whether it is visited does not matter.
#pragma once
#include "device.cuh"

constexpr float kLog2OfE = 1.4426950408889634f;
LLMC_DEVICE float no_score() { return bits_float(0xff800000u); }  // -inf: of a key that is not seen

// Which keys a query at a position sees: none behind itself, WINDOW of them at most, none before its own CHUNK of
// positions. 0: no such limit.
template <int WINDOW, int CHUNK>
struct Sight {
  static LLMC_DEVICE int first_key(int position) {
    const int window = WINDOW && position >= WINDOW ? position - WINDOW + 1 : 0;
    const int chunk = CHUNK ? position / (CHUNK ? CHUNK : 1) * CHUNK : 0;
    return max_of(window, chunk);
  }
};

// Whether who sees keys first to last sees all of start to stop.
LLMC_DEVICE bool sees_all(int first, int last, int start, int stop) { return first <= start && stop <= last; }

// The keys that one query row sees, first to last; last < first: none. slope: ALiBi, in base-2 logits per position.
struct RowSight {
  int first, last;
  float slope;
};

// SOFTCAP: tanh(q.k * cap / (2 log2 e)). ALIBI: scores are base-2 logits already, less slope * distance.
template <bool SOFTCAP, bool ALIBI>
struct Scoring {
  float base2;  // base-2 logits per score, before ALiBi
  float cap;

  LLMC_DEVICE float unit() const { return ALIBI ? 1.0f : base2; }
  LLMC_DEVICE float score(float product, const RowSight& row, int key) const {
    const float y = SOFTCAP ? fmaf(-2.0f, rcp_approx(exp2_approx(product * cap) + 1.0f), 1.0f) : product;
    return ALIBI ? fmaf(y, base2, row.slope * float(key - row.last)) : y;
  }
};

// Products to scores in place, in the layout of mma's accumulators: s[n][2h + e] is row h of two, key + 8n + e. `top`:
// the largest score of each row, of this lane's. `every`: all rows see all keys.
template <int N, class Scores>
LLMC_DEVICE void score_keys(float (*s)[4], const Scores& scoring, const RowSight (&rows)[2], int key, bool every,
                            float (&top)[2]) {
  LLMC_UNROLL
  for (int h = 0; h < 2; h++)
    LLMC_UNROLL
    for (int n = 0; n < N; n++)
      LLMC_UNROLL
      for (int e = 0; e < 2; e++) {
        const int at = key + n * 8 + e;
        const bool seen = every || (rows[h].first <= at && at <= rows[h].last);
        const float y = scoring.score(s[n][h * 2 + e], rows[h], at);
        s[n][h * 2 + e] = seen ? y : no_score();
        top[h] = max_of(top[h], s[n][h * 2 + e]);
      }
}

// The largest of what four neighbouring lanes, which share a row, hold; their sum.
LLMC_DEVICE float row_max(float top) {
  LLMC_UNROLL
  for (int bit = 1; bit <= 2; bit <<= 1) top = max_of(top, __shfl_xor_sync(0xffffffffu, top, bit));
  return top;
}
LLMC_DEVICE float row_sum(float sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

// Scores to weights in place, given each row's largest score in the split; `sum`: of this lane's, in order of keys.
template <int N>
LLMC_DEVICE void weigh_keys(float (*s)[4], const float (&top)[2], float unit, float (&sum)[2]) {
  LLMC_UNROLL
  for (int h = 0; h < 2; h++) {
    const float shift = top[h] == no_score() ? 0.0f : -(top[h] * unit);
    sum[h] = 0.0f;
    LLMC_UNROLL
    for (int n = 0; n < N; n++)
      LLMC_UNROLL
      for (int e = 0; e < 2; e++) {
        s[n][h * 2 + e] = exp2_approx(fmaf(s[n][h * 2 + e], unit, shift));
        sum[h] += s[n][h * 2 + e];
      }
  }
}

// What a row has gathered: the largest score and the sum of weights relative to it. Values belong to them.
struct RowSum {
  float top, sum;
};
LLMC_DEVICE RowSum no_row() { return {no_score(), 0.0f}; }

// Takes a split in. Values follow as fold.value(of the split, gathered).
struct Fold {
  float keep, add;
  LLMC_DEVICE float value(float split, float gathered) const { return fmaf(split, add, gathered * keep); }
};
LLMC_DEVICE Fold fold_split(RowSum& row, RowSum split, float unit) {
  const float top = max_of(row.top, split.top), base = top == no_score() ? 0.0f : top;
  const Fold fold{exp2_approx((row.top - base) * unit), exp2_approx((split.top - base) * unit)};
  row.sum = fmaf(split.sum, fold.add, row.sum * fold.keep);
  row.top = top;
  return fold;
}

// What a row's values are multiplied with in the end. A sink is one more logit, without a value.
template <bool SINKS>
LLMC_DEVICE float finish_row(RowSum row, const float* sinks, int head, float unit) {
  if (!SINKS) return rcp_approx(row.sum);
  const float sink = sinks[head] * kLog2OfE, top = row.top * unit, most = max_of(top, sink);
  const float keep = exp2_approx(top - most);
  return keep * rcp_approx(fmaf(row.sum, keep, exp2_approx(sink - most)));
}
// Adding zero makes -0 of +0's sign: a split without a visible key may have turned one into the other.
LLMC_DEVICE float finish_value(float value, float factor) { return fmaf(value, factor, 0.0f); }
