// Chooses the next token of each row of logits, as abi.h's LlmcSampling says.
//
//   sample_rows(sampling, logits, rows, stride, valid, outputs, scratch, worker)
//
// abi: every worker calls it; rows are dealt among workers; no barrier. scratch: sample_scratch_bytes(valid) per worker.
// numerics, step by step, over ids 0 .. valid-1 (larger ids are padding of the vocabulary: never chosen, not counted)
//   1 a NaN or infinite raw logit: token -1, log-probability NaN, and -1 and NaN as alternatives
//   2 log-probability of id = logit - max - log(sum exp(logit - max)), raw logits
//   3 x = logit; for every id in history: x > 0 ? x / repetition_penalty : x * repetition_penalty; then for ids in the
//     output part: x -= count * frequency_penalty + presence_penalty; then x += bias, entry by entry.
//     If the largest x is not finite: token -1
//   4 temperature 0: the largest x, lowest id on ties. Otherwise
//   5 weight = exp((x - max x) / temperature) in f32; order = x descending, id ascending; all sums in f64
//     top_k: the first k of the order; top_p: of those, the shortest prefix with at least top_p of their weight;
//     min_p: of those, weights of at least min_p (the largest weight is 1)
//   6 the winner of the race (race.h) that those tokens run for (seed, sample_index, position)
#pragma once
#include "abi.h"
#include "operand.h"
#include "race.h"
#include "select.h"
#include "simd_math.h"
#include "threads.h"

namespace llmc {

struct SampleOutputs {
  int32_t* tokens;       // [rows]
  float* logprob;        // [rows]
  int32_t* top_ids;      // [rows, LLMC_MAX_LOGPROBS], the first num_logprobs are written
  float* top_logprobs;   // [rows, LLMC_MAX_LOGPROBS]
};

// Five rows of floats: penalised logits, counts or weights, and three of likely tokens.
inline int64_t sample_row_floats(int valid) { return round_up(valid, 16); }
inline int64_t sample_scratch_bytes(int valid) { return 5 * sample_row_floats(valid) * 4; }

struct Extremes {
  float largest;
  bool finite;  // every value is
};
inline Extremes extremes(const float* x, int n) {
  f32x16 m = splat(-__builtin_inff()), bad = splat(0.0f);
  for (int i = 0; i < n; i += 16) {
    f32x16 v = load(x + i, n - i);
    bad = bad + (v - v);
    m = max_raw(m, select(first_lanes(n - i), v, -__builtin_inff()));
  }
  return {reduce_max(m), reduce_add(bad) == 0.0f};
}

inline int32_t lowest_id_of(const float* x, int n, float value) {
  for (int i = 0; i < n; i += 16) {
    uint32_t hit = lane_bits(eq(load(x + i, n - i), value));
    if (n - i < 16) hit &= (1u << (n - i)) - 1;
    if (hit) return i + __builtin_ctz(hit);
  }
  return -1;
}

// w[i] = exp((x[i] - largest) / temperature) where w is given; returns the sum in f64.
inline double exponentials(const float* x, int n, float largest, float temperature, float* w) {
  double total = 0.0;
  for (int i = 0; i < n; i += 256) {
    f32x16 sum = splat(0.0f);
    for (int j = i; j < n && j < i + 256; j += 16) {
      f32x16 e = select(first_lanes(n - j), exp((load(x + j, n - j) - largest) / splat(temperature)), 0.0f);
      if (w) store(w + j, e, n - j);
      sum = sum + e;
    }
    total += (double)reduce_add(sum);
  }
  return total;
}

inline float log_of(float x) {
  float v[16];
  store(v, log(splat(x)));
  return v[0];
}

// The n largest, best first, lowest id on ties.
inline void top_logits(const float* x, int valid, int n, int32_t* ids) {
  float best[LLMC_MAX_LOGPROBS];
  int have = 0;
  for (int i = 0; i < valid; i += 16) {
    if (have == n && !lane_bits(gt(load(x + i, valid - i), best[n - 1]))) continue;
    for (int j = i; j < valid && j < i + 16; ++j) {
      if (have == n && !(x[j] > best[n - 1])) continue;
      int at = have < n ? have++ : n - 1;
      for (; at > 0 && x[j] > best[at - 1]; --at) {
        best[at] = best[at - 1];
        ids[at] = ids[at - 1];
      }
      best[at] = x[j];
      ids[at] = j;
    }
  }
}

// Step 3: x starts as a copy of the logits; counts [valid] is scratch.
inline void penalise(const LlmcSampling& s, float* x, int valid, int32_t* counts) {
  auto known = [&](int32_t id) { return id >= 0 && id < valid; };
  if (s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f) {
    // counts[id] = 1 + occurrences in the output until the id is done, then 0
    for (int i = 0; i < s.history_len; ++i)
      if (known(s.history[i])) counts[s.history[i]] = 1;
    for (int i = s.prompt_len > 0 ? s.prompt_len : 0; i < s.history_len; ++i)
      if (known(s.history[i])) ++counts[s.history[i]];
    for (int i = 0; i < s.history_len; ++i) {
      int32_t id = s.history[i];
      if (!known(id) || counts[id] == 0) continue;
      x[id] = x[id] > 0.0f ? x[id] / s.repetition_penalty : x[id] * s.repetition_penalty;
      if (counts[id] > 1) x[id] -= (float)(counts[id] - 1) * s.frequency_penalty + s.presence_penalty;
      counts[id] = 0;
    }
  }
  for (int i = 0; i < s.num_bias; ++i)
    if (known(s.bias_ids[i])) x[s.bias_ids[i]] += s.bias[i];
}

// Tokens under selection, ascending id: all of them, or the likely ones packed together.
struct Tokens {
  const float* x;
  const float* weights;
  const int32_t* ids; // null: the index is the id
  int count;
};

// Steps 5, from top_k on, and 6; valid and total: number and sum of all weights, of tokens outside of t too.
inline int32_t draw(const LlmcSampling& s, Race race, const Tokens& t, int valid, double total) {
  Cut cut = Cut::everything();
  auto weight = [&](int i) { return (double)t.weights[i]; };
  if (s.top_k > 0 && s.top_k < valid) {
    cut = shortest_prefix(t.x, t.count, cut, s.top_k, [](int) { return 1.0; });
    total = 0.0;
    for (int i = 0; i < t.count; ++i) total += cut.keeps(order_key(t.x[i]), i) ? weight(i) : 0.0;
  }
  if (s.top_p < 1.0f) cut = shortest_prefix(t.x, t.count, cut, s.top_p * total, weight);
  auto kept = [&](int i) { return cut.keeps(order_key(t.x[i]), i) && t.weights[i] >= s.min_p; };
  if (t.ids) race.run_listed(t.x, t.ids, t.count, kept);
  else race.run(t.x, t.count, kept);
  return race.leader;
}

// The tokens whose weight is at least LIKELY, packed into three rows at `packed`.
constexpr float LIKELY = 1e-6f;
inline Tokens pack_likely(const float* x, const float* weights, int valid, float* packed) {
  const int64_t row = sample_row_floats(valid);
  float *px = packed, *pw = packed + row;
  int32_t* ids = (int32_t*)(packed + 2 * row);
  int count = 0;
  for (int i = 0; i < valid; i += 16) {
    uint32_t hits = lane_bits(ge(load(weights + i, valid - i), LIKELY));
    for (; hits; hits &= hits - 1) {
      const int id = i + __builtin_ctz(hits);
      px[count] = x[id];
      pw[count] = weights[id];
      ids[count++] = id;
    }
  }
  return {px, pw, ids, count};
}

// Whether the filters leave none but tokens of `likely`, so that the others need not be looked at again.
inline bool filters_stay_within(const LlmcSampling& s, const Tokens& likely, int valid, double total) {
  if (s.top_k > 0 && s.top_k < valid) return s.top_k <= likely.count;
  if (s.min_p >= LIKELY) return true;
  double sum = 0.0;
  for (int i = 0; i < likely.count; ++i) sum += (double)likely.weights[i];
  return s.top_p < 1.0f && sum >= s.top_p * total;
}

// Steps 5 and 6. rows: four rows of scratch.
inline int32_t draw_token(const LlmcSampling& s, const float* x, int valid, float largest, float* rows) {
  Race race(s, x, largest, lowest_id_of(x, valid, largest));  // which every filter keeps
  if ((s.top_k <= 0 || s.top_k >= valid) && s.top_p >= 1.0f && s.min_p <= 0.0f) {
    race.run(x, valid, [](int) { return true; });
    return race.leader;
  }
  const double total = exponentials(x, valid, largest, s.temperature, rows);
  Tokens likely = pack_likely(x, rows, valid, rows + sample_row_floats(valid));
  if (filters_stay_within(s, likely, valid, total)) return draw(s, race, likely, valid, total);
  return draw(s, race, Tokens{x, rows, nullptr, valid}, valid, total);
}

inline int32_t choose(const LlmcSampling& s, const float* logits, int valid, float largest, float* scratch) {
  const bool plain = s.repetition_penalty == 1.0f && s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f &&
                     s.num_bias == 0;
  float* second = scratch + sample_row_floats(valid);
  const float* x = logits;
  if (!plain) {
    __builtin_memcpy(scratch, logits, (size_t)valid * 4);
    penalise(s, scratch, valid, (int32_t*)second);
    x = scratch;
    largest = extremes(x, valid).largest;
    if (!(largest - largest == 0.0f)) return -1;
  }
  return s.temperature == 0.0f ? lowest_id_of(x, valid, largest) : draw_token(s, x, valid, largest, second);
}

inline void sample_row(const LlmcSampling& s, const float* logits, int valid, int row, const SampleOutputs& out,
                       float* scratch) {
  int32_t* ids = out.top_ids + (int64_t)row * LLMC_MAX_LOGPROBS;
  float* logprobs = out.top_logprobs + (int64_t)row * LLMC_MAX_LOGPROBS;
  const int wanted = s.num_logprobs < valid ? s.num_logprobs : valid;
  for (int i = 0; i < s.num_logprobs; ++i) {
    ids[i] = -1;
    logprobs[i] = __builtin_nanf("");
  }
  out.tokens[row] = -1;
  out.logprob[row] = __builtin_nanf("");
  Extremes raw = extremes(logits, valid);
  if (!raw.finite) return;
  const float log_sum = log_of((float)exponentials(logits, valid, raw.largest, 1.0f, nullptr));
  auto logprob = [&](int32_t id) { return logits[id] - raw.largest - log_sum; };
  if (wanted > 0) top_logits(logits, valid, wanted, ids);
  for (int i = 0; i < wanted; ++i) logprobs[i] = logprob(ids[i]);
  int32_t token = choose(s, logits, valid, raw.largest, scratch);
  if (token < 0) return;
  out.tokens[row] = token;
  out.logprob[row] = logprob(token);
}

// logits [rows, stride]; scratch: sample_scratch_bytes(valid) for every worker.
inline void sample_rows(const LlmcSampling* sampling, const float* logits, int rows, int64_t stride, int valid,
                        const SampleOutputs& out, void* scratch, const Worker& worker) {
  float* mine = (float*)((uint8_t*)scratch + worker.id * sample_scratch_bytes(valid));
  for (int r = worker.id; r < rows; r += worker.count) sample_row(sampling[r], logits + r * stride, valid, r, out, mine);
}

}  // namespace llmc
