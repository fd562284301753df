// sample.cuh - the next token of each row of logits, as templates/cpu/sample.h defines it, step by step and with the
// same random numbers. One block per row; the vocabulary is never sorted.
//
// numerics  f32 sums of exponentials have the CPU's order (256 ids in 16 lanes, then a tree; blocks in order, in f64),
//           so log-probabilities and the total weight are the CPU's bits, and so are scores (race.cuh). Sums of kept
//           weights are integers of 62 bits: the exact sums, cut off below 2^-62 of their order of magnitude. The CPU
//           adds them in f64, exactly too while the tokens that the filters leave weigh 1e-6 and more and add up to less
//           than 1024; else its rounding (relative 1e-13) may move the boundary of top_p.
#pragma once
#include "selection.cuh"
#include "step.cuh"
#include "winner.cuh"

struct SampleOutputs {
  int* tokens;          // [R]; -1 where the logits are not finite
  float* logprob;       // [R]
  int* top_ids;         // [R, kMaxLogprobs], the first num_logprobs are written
  float* top_logprobs;  // [R, kMaxLogprobs]
};

struct Extremes {
  float largest;
  int id;       // the lowest with that value
  bool finite;  // every value is
};

// VALID ids have text (the others are never chosen, nor counted); rows are STRIDE floats apart. Up to LIST likely
// tokens are looked at alone, in shared memory.
template <int VALID, int STRIDE, int THREADS, int LIST>
struct Sampler {
  using Select = Selection<VALID, THREADS, LIST>;
  using Tokens = typename Select::Tokens;
  using Place = typename Select::Place;
  static constexpr int kWarps = THREADS / 32, kBlocks = (VALID + 255) / 256;
  static constexpr float kLikely = 1e-6f;
  static_assert(STRIDE % 4 == 0 && VALID <= STRIDE, "rows are read 16 bytes at a time");

  struct Shared {
    double raw_total, total;  // sums of exponentials of the logits, and of weights
    typename Select::Shared select;
    typename Winner<VALID, THREADS, LIST>::Shared winner;
    Extremes extremes[kWarps];
    float raw_sums[kBlocks], sums[kBlocks];
    float best_x[kMaxLogprobs];
    int best_id[kMaxLogprobs];
    u32 num_best;
  };

  static LLMC_DEVICE void take(Extremes& e, float largest, int id) {
    if (largest > e.largest || (largest == e.largest && id < e.id)) e.largest = largest, e.id = id;
  }
  // copy, unless null, gets the row as well. Each thread's own largest value goes to the list. A barrier lies between two
  // calls.
  static LLMC_DEVICE Extremes extremes(Shared& s, const float* x, float* copy) {
    Extremes e{-inf_f32(), 0x7fffffff, true};
    for (int at = threadIdx.x * 4; at < VALID; at += THREADS * 4) {
      const Four v = load_four(x + at);
      if (copy) {
        Vec16 bits;
        LLMC_UNROLL
        for (int k = 0; k < 4; k++) bits.x[k] = float_bits(v.x[k]);
        store16(copy + at, bits);
      }
      LLMC_UNROLL
      for (int k = 0; k < 4; k++) {
        if (at + k >= VALID) continue;
        e.finite = e.finite && v.x[k] - v.x[k] == 0.0f;
        if (v.x[k] > e.largest) e.largest = v.x[k], e.id = at + k;
      }
    }
    s.select.list_x[threadIdx.x] = e.largest;
    s.select.list_id[threadIdx.x] = threadIdx.x;
    LLMC_UNROLL
    for (int bit = 16; bit; bit >>= 1) {
      const float largest = __shfl_xor_sync(0xffffffffu, e.largest, bit);
      take(e, largest, __shfl_xor_sync(0xffffffffu, e.id, bit));
    }
    e.finite = __ballot_sync(0xffffffffu, e.finite) == 0xffffffffu;
    if ((threadIdx.x & 31) == 0) s.extremes[threadIdx.x >> 5] = e;
    __syncthreads();
    e = s.extremes[0];
    for (int i = 1; i < kWarps; i++) {
      const Extremes o = s.extremes[i];
      take(e, o.largest, o.id);
      e.finite = e.finite && o.finite;
    }
    return e;
  }

  // The n best ids into s.best_id, in any order, for after the next barrier; the list holds each thread's largest logit.
  // Tokens below the n-th largest of those cannot be among them.
  static LLMC_DEVICE void find_best(Shared& s, const float* logits, int n) {
    const Tokens all{logits, 0, VALID, 0.0f, 1.0f, 0}, largest{nullptr, 0, THREADS, 0.0f, 1.0f, 0};
    Kept kept = all_kept();
    kept.lowest = Select::reach(s.select, largest, kept, false, n, Select::kKeyLevels).key;
    if (threadIdx.x == 0) s.select.listed = s.num_best = 0;
    __syncthreads();
    Select::each(s.select, all, [&](float x, int id, bool live, int) {
      if (live && kept.has(order_key(x), id)) Select::append(s.select, x, 0.0f, id);
    });
    __syncthreads();
    const int few = s.select.listed;
    const Tokens tokens = few <= LIST ? Tokens{nullptr, 0, few, 0.0f, 1.0f, 0} : all;
    const Place last = Select::reach(s.select, tokens, kept, false, n, Select::kLevels);
    kept.lowest = last.key, kept.last_id = last.id;
    Select::each(s.select, tokens, [&](float x, int id, bool live, int) {
      if (!live || !kept.has(order_key(x), id)) return;
      const u32 at = smem_atomic_add(smem_addr(&s.num_best), 1);
      s.best_x[at] = x;
      s.best_id[at] = id;
    });
  }

  // Set instead of the logit of an id that the history holds: a NaN's bits, plus how often it occurs in the output.
  static constexpr u32 kSeen = 0xffc00000u;

  // Step 3: x is a copy of the logits. What else edits logits belongs here, before the largest is looked for.
  static LLMC_DEVICE void edit(const SampleRow& row, bool penalised, const int* history, const int* bias_ids,
                               const float* bias, const float* logits, float* x) {
    auto known = [](int id) { return id >= 0 && id < VALID; };
    u32* cells = reinterpret_cast<u32*>(x);
    if (penalised) {
      history += row.history;
      for (int i = threadIdx.x; i < row.history_len; i += THREADS)
        if (known(history[i])) atomic_exchange(cells + history[i], kSeen);
      __syncthreads();
      for (int i = max_of(row.prompt_len, 0) + int(threadIdx.x); i < row.history_len; i += THREADS)
        if (known(history[i])) atomic_add(cells + history[i], 1);
      __syncthreads();
      for (int id = threadIdx.x; id < VALID; id += THREADS) {
        if (cells[id] < kSeen) continue;
        const float raw = flushed(logits[id]), count = float(cells[id] - kSeen);
        float v = flushed(raw > 0.0f ? raw / row.repetition_penalty : raw * row.repetition_penalty);
        if (count > 0.0f) v = flushed(v - (count * row.frequency_penalty + row.presence_penalty));
        x[id] = v;
      }
      __syncthreads();
    }
    bias_ids += row.bias;
    bias += row.bias;
    for (int i = threadIdx.x; i < row.num_bias; i += THREADS) {  // the first entry of an id adds all of them, in order
      const int id = bias_ids[i];
      bool first = known(id);
      for (int j = 0; first && j < i; j++) first = bias_ids[j] != id;
      if (!first) continue;
      float v = x[id];
      for (int j = i; j < row.num_bias; j++)
        if (bias_ids[j] == id) v = flushed(v + bias[j]);
      x[id] = v;
    }
    __syncthreads();
  }

  // Sums of exponentials in the order of sample.h: s.raw_total of the logits, and, if it weighs tokens, s.total of the
  // weights; then likely tokens go to the list. Four threads share 256 ids, each four of 16 lanes.
  static LLMC_DEVICE void exponentials(Shared& s, const float* logits, float raw_largest, const float* x, float largest,
                                       bool weighs, float temperature) {
    const int quarter = threadIdx.x & 3;
    const bool same = x == logits && temperature == 1.0f;
    if (threadIdx.x == 0) s.select.listed = 0;
    __syncthreads();
    for (int base = 0; base < kBlocks; base += THREADS / 4) {
      const int block = base + (threadIdx.x >> 2);
      Four raw{}, sum{};
      LLMC_NO_UNROLL
      for (int step = 0; step < 16; step += 2) {
        Four v[2]{}, u[2]{};
        const int first = block * 256 + step * 16 + quarter * 4;
        LLMC_UNROLL
        for (int i = 0; i < 2; i++) {
          if (first + i * 16 >= VALID) continue;
          v[i] = load_four(logits + first + i * 16);
          u[i] = x == logits ? v[i] : load_four(x + first + i * 16);
        }
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
          const int id = first + i / 4 * 16 + i % 4;
          if (id >= VALID) continue;
          const float e = weight_of(v[i / 4].x[i % 4], raw_largest, 1.0f);
          raw.x[i % 4] += e;
          if (!weighs) continue;
          const float w = same ? e : weight_of(u[i / 4].x[i % 4], largest, temperature);
          sum.x[i % 4] += w;
          if (w >= kLikely) Select::append(s.select, u[i / 4].x[i % 4], w, id);
        }
      }
      const float a = tree(raw), b = tree(sum);
      if (quarter == 0 && block < kBlocks) s.raw_sums[block] = a, s.sums[block] = b;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.raw_total = in_order(s.raw_sums);
    if (threadIdx.x == THREADS - 32 && weighs) s.total = in_order(s.sums);
    __syncthreads();
  }
  // The sum of 16 lanes of four neighbouring threads: lanes i and i+8, then i+4, i+2, i+1.
  static LLMC_DEVICE float tree(Four v) {
    LLMC_UNROLL
    for (int bit = 2; bit; bit >>= 1) {
      LLMC_UNROLL
      for (int k = 0; k < 4; k++) v.x[k] += __shfl_xor_sync(0xffffffffu, v.x[k], bit);
    }
    return (v.x[0] + v.x[2]) + (v.x[1] + v.x[3]);
  }
  static LLMC_DEVICE double in_order(const float* sums) {
    double total = 0.0;
    LLMC_NO_UNROLL
    for (int i = 0; i < kBlocks; i += 8) {
      float next[8];
      LLMC_UNROLL
      for (int j = 0; j < 8; j++) next[j] = i + j < kBlocks ? sums[i + j] : 0.0f;
      LLMC_UNROLL
      for (int j = 0; j < 8; j++) total += double(next[j]);
    }
    return total;
  }

  static LLMC_DEVICE bool by_rank(const SampleRow& row) { return row.top_k > 0 && row.top_k < VALID; }
  static LLMC_DEVICE bool by_sum(const SampleRow& row) { return row.top_p < 1.0f; }
  static LLMC_DEVICE bool filters(const SampleRow& row) { return by_rank(row) || by_sum(row) || row.min_p > 0.0f; }

  // Steps 5 and 6. Where no filter asks for weights, there are none.
  static LLMC_DEVICE int draw(Shared& s, const SampleRow& row, const float* x, const Extremes& top) {
    Tokens tokens{x, 0, VALID, top.largest, row.temperature, 0};
    Kept kept = all_kept();
    if (filters(row)) filter(s, row, tokens, kept);
    return Winner<VALID, THREADS, LIST>::of(s.winner, s.select, row, tokens, kept, top.largest, top.id);
  }
  // Step 5, but for min_p: which tokens are kept, and likely ones alone where those are among them.
  static LLMC_DEVICE void filter(Shared& s, const SampleRow& row, Tokens& tokens, Kept& kept) {
    const int scale = tokens.scale = scale_of(s.total);
    const bool by_rank = Sampler::by_rank(row), by_sum = Sampler::by_sum(row);
    const bool by_weight = row.min_p >= kLikely;
    const u64 whole = reaching(double(row.top_p) * s.total * two_to(scale));
    const int listed = s.select.listed;
    if (listed <= LIST && (by_rank || by_sum || by_weight)) {  // do the filters leave likely tokens alone?
      const Tokens likely{nullptr, 0, listed, tokens.largest, row.temperature, scale};
      const bool within = by_rank ? row.top_k <= likely.end
                          : by_weight || Select::kept_weight(s.select, likely, kept) >= whole;
      if (within) tokens = likely;
    }
    LLMC_NO_UNROLL
    for (int step = 0; step < 2; step++) {  // top_k, then top_p
      if (step == 0 ? !by_rank : !by_sum) continue;
      u64 target = step == 0 ? row.top_k : whole;
      if (step == 1 && by_rank) target = reaching(double(row.top_p) * double(Select::kept_weight(s.select, tokens, kept)));
      const Place last = Select::reach(s.select, tokens, kept, step == 1, target, Select::kLevels);
      if (last.found) kept.lowest = last.key, kept.last_id = last.id;
    }
  }

  static LLMC_DEVICE void run(const SampleRow* sampling, const float* logits, const Counts* counts, const int* history,
                              const int* bias_ids, const float* bias, float* edited_rows, const SampleOutputs& out) {
    LLMC_SMEM(raw_smem);
    Shared& s = *reinterpret_cast<Shared*>(raw_smem);
    const int r = blockIdx.x;
    grid_wait();
    if (r >= counts->rows) return;
    const SampleRow row = sampling[r];
    if (!row.wanted) return;
    logits += size_t(r) * STRIDE;
    const bool penalised = row.history_len > 0 && (row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f ||
                                                   row.frequency_penalty != 0.0f);
    const bool edited = penalised || row.num_bias > 0;
    float* copy = edited ? edited_rows + size_t(r) * STRIDE : nullptr;
    const float* x = edited ? copy : logits;
    const int best = min_of(row.num_logprobs, VALID);

    const Extremes raw = extremes(s, logits, copy);
    Extremes top = raw;
    int token = -1;
    if (raw.finite) {
      if (best > 0) find_best(s, logits, best);
      if (edited) {
        edit(row, penalised, history, bias_ids, bias, logits, copy);
        top = extremes(s, x, nullptr);
      }
      const bool draws = row.temperature != 0.0f && top.largest - top.largest == 0.0f;
      exponentials(s, logits, raw.largest, x, top.largest, draws && filters(row), row.temperature);
      if (draws) token = draw(s, row, x, top);
      else if (top.largest - top.largest == 0.0f) token = top.id;
    }
    grid_launch_dependents();
    write(s, row, r, logits, raw, token, best, out);
  }

  static LLMC_DEVICE void write(const Shared& s, const SampleRow& row, int r, const float* logits, const Extremes& raw,
                                int token, int best, const SampleOutputs& out) {
    const float log_sum = raw.finite ? log_f32(float(s.raw_total)) : 0.0f;
    auto logprob = [&](float x) { return x - raw.largest - log_sum; };
    if (threadIdx.x == 0) {
      out.tokens[r] = token;
      out.logprob[r] = token >= 0 ? logprob(flushed(logits[token])) : nan_f32();
    }
    const int i = threadIdx.x;
    if (i >= row.num_logprobs) return;
    int at = i, id = -1;
    float value = nan_f32();
    if (raw.finite && i < best) {  // one thread for each of the best: its place is the number of those before it
      const u32 key = order_key(s.best_x[i]);
      at = 0;
      for (int j = 0; j < best; j++) {
        const u32 other = order_key(s.best_x[j]);
        at += other > key || (other == key && s.best_id[j] < s.best_id[i]);
      }
      id = s.best_id[i];
      value = logprob(s.best_x[i]);
    }
    out.top_ids[size_t(r) * kMaxLogprobs + at] = id;
    out.top_logprobs[size_t(r) * kMaxLogprobs + at] = value;
  }
};
