// A reference device: the step ABI with a "model" whose logits are a hash of the sequence's tokens, read back from its
// KV blocks. A wrong block table, a leaked or shared block, a mixed-up row or a wrong position changes the answer, or
// is caught outright: each slot of the pool remembers the position that was written to it.
// It has a KV group for each of WINDOWS (0: all positions). Logits hash the tokens that the first group's window shows; the
// other groups must show the same tokens, and an entry of a block that the window has passed must say so.
// reference_oracle.py computes the same in Python from the tokens alone.
#include "abi.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

// VOCAB, NUM_VALID, BLOCK_TOKENS, WINDOWS, POISON, NAP and STUCK come from the compiler's command line.

struct Slot {
  int32_t token;
  int32_t position_plus_one;
  uint64_t padding;
};

static const int windows[] = {WINDOWS};
constexpr int GROUPS = sizeof windows / sizeof windows[0];

#if LLMC_ABI_VERSION >= 3
struct LlmcPool {
  int32_t num_threads;
};
#endif

struct LlmcEngine {
  LlmcConfig config;
  std::vector<LlmcKvPool> kv;
  uint64_t salt;
};

// First position that a token at `position` reads of a group.
static int first_read(int group, int position) {
  return windows[group] && position >= windows[group] ? position - windows[group] + 1 : 0;
}
static int64_t block_bytes(int group) { return (group + 1) * BLOCK_TOKENS * (int64_t)sizeof(Slot); }

static uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

static int entry_of(const LlmcEngine* e, const LlmcStep* s, int group, int seq, int entry) {
  return s->block_tables[((int64_t)group * e->config.max_seqs + seq) * s->block_table_stride + entry];
}

static Slot* slot_of(const LlmcEngine* e, const LlmcStep* s, int group, int seq, int position) {
  if (position / BLOCK_TOKENS >= s->block_table_stride) return nullptr;
  int64_t block = entry_of(e, s, group, seq, position / BLOCK_TOKENS);
  if (block < 0 || block >= e->kv[group].num_blocks) return nullptr;
  return (Slot*)((char*)e->kv[group].base + block * block_bytes(group)) + position % BLOCK_TOKENS;
}

// Are the blocks given back that no token at `position` or later reads, and only those?
static bool tables_are_tidy(const LlmcEngine* e, const LlmcStep* s, int seq, int position) {
  for (int g = 0; g < GROUPS; ++g)
    for (int entry = 0; entry <= position / BLOCK_TOKENS; ++entry) {
      bool passed = (entry + 1) * BLOCK_TOKENS <= first_read(g, position);
      if (passed != (entry_of(e, s, g, seq, entry) == LLMC_NO_BLOCK)) return false;
    }
  return true;
}

// Logits [VOCAB] after `position`, from the cache alone. Returns 0, or an error code.
static int logits_at(const LlmcEngine* e, const LlmcStep* s, int seq, int position, float* logits) {
  uint64_t h = e->salt;
  bool poisoned = false;
  for (int g = 1; g < GROUPS; ++g)
    for (int p = first_read(g, position); p <= position; ++p) {
      const Slot *slot = slot_of(e, s, g, seq, p), *same = slot_of(e, s, 0, seq, p);
      if (!slot) return -10;
      if (slot->position_plus_one != p + 1) return -11;
      if (p >= first_read(0, position) && slot->token != same->token) return -14;
    }
  for (int p = first_read(0, position); p <= position; ++p) {
    const Slot* slot = slot_of(e, s, 0, seq, p);
    if (!slot) return -10;
    if (slot->position_plus_one != p + 1) return -11;
    h = mix(h ^ (uint64_t)(uint32_t)slot->token ^ ((uint64_t)p << 32));
    poisoned |= slot->token == POISON;
  }
  for (uint64_t v = 0; v < VOCAB; ++v)
    logits[v] = poisoned ? NAN : (float)((double)(mix(h + v * 0xD6E8FEB86659FD93ull) >> 40) / 2097152.0 - 4.0);
  return 0;
}

static int32_t choose(const LlmcSampling& q, const float* raw) {
  std::vector<double> l(raw, raw + NUM_VALID);
  std::vector<int> all(NUM_VALID, 0), out(NUM_VALID, 0);
  for (int i = 0; i < q.history_len; ++i) {
    if (q.history[i] >= NUM_VALID) continue;
    all[q.history[i]]++;
    if (i >= q.prompt_len) out[q.history[i]]++;
  }
  for (int v = 0; v < NUM_VALID; ++v) {
    if (all[v]) l[v] = l[v] > 0 ? l[v] / q.repetition_penalty : l[v] * q.repetition_penalty;
    if (out[v]) l[v] -= (double)q.presence_penalty + (double)q.frequency_penalty * out[v];
  }
  for (int i = 0; i < q.num_bias; ++i) l[q.bias_ids[i]] += q.bias[i];
  std::vector<int> order(NUM_VALID);
  for (int v = 0; v < NUM_VALID; ++v) order[v] = v;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
  if (q.temperature == 0) return order[0];
  size_t n = q.top_k > 0 && q.top_k < NUM_VALID ? q.top_k : NUM_VALID;
  std::vector<double> p(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) total += p[i] = exp((l[order[i]] - l[order[0]]) / q.temperature);
  double kept = 0;
  size_t m = 0;
  while (m < n && kept < q.top_p * total) kept += p[m++];
  while (m > 1 && p[m - 1] < q.min_p * p[0]) --m;
  const uint64_t row = mix(mix(mix(q.seed) ^ q.sample_index) ^ q.position);
  int first = -1;
  double least = INFINITY;
  for (size_t i = 0; i < m; ++i) {
    double time = -log(((mix(row ^ order[i]) >> 12) + 0.5) / 4503599627370496.0) / p[i];
    if (time < least || (time == least && order[i] < first)) first = order[i], least = time;
  }
  return first;
}

static void log_probs(const LlmcStep* s, int row, const float* logits, int32_t chosen, int count) {
  // Of the raw logits, normalised over the ids that can be sampled (docs/runtime.md).
  double top = -INFINITY, total = 0;
  for (int v = 0; v < NUM_VALID; ++v) top = std::max(top, (double)logits[v]);
  for (int v = 0; v < NUM_VALID; ++v) total += exp(logits[v] - top);
  double norm = top + log(total);
  s->out_logprob[row] = (float)(logits[chosen] - norm);
  std::vector<int> order(NUM_VALID);
  for (int v = 0; v < NUM_VALID; ++v) order[v] = v;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  for (int i = 0; i < count; ++i) {
    s->out_top_ids[row * LLMC_MAX_LOGPROBS + i] = order[i];
    s->out_top_logprobs[row * LLMC_MAX_LOGPROBS + i] = (float)(logits[order[i]] - norm);
  }
}

static int32_t run(LlmcEngine* e, const LlmcStep* s, bool decode) {
  const LlmcConfig& c = e->config;
  if (s->num_tokens < 1 || s->num_tokens > c.max_tokens) return -1;
  if (s->num_seqs < 1 || s->num_seqs > c.max_seqs) return -2;
  if (s->num_rows < 0 || s->num_rows > c.max_rows) return -3;
  if (s->seq_starts[0] != 0 || s->seq_starts[s->num_seqs] != s->num_tokens) return -4;
  for (int q = 0; q < s->num_seqs; ++q) {
    int first = s->seq_starts[q], end = s->seq_starts[q + 1];
    if (end <= first || (decode && end != first + 1)) return -5;
    if (!tables_are_tidy(e, s, q, s->positions[first])) return -15;
    for (int t = first; t < end; ++t) {
      if (s->positions[t] != s->positions[first] + (t - first) || s->positions[t] >= c.max_seq_len) return -6;
      if (s->token_ids[t] < 0 || s->token_ids[t] >= VOCAB) return -7;
      if (s->token_ids[t] == NAP) usleep(300000);
      while (s->token_ids[t] == STUCK) pause();
      for (int g = 0; g < GROUPS; ++g) {
        Slot* slot = slot_of(e, s, g, q, s->positions[t]);
        if (!slot) return -8;
        *slot = Slot{s->token_ids[t], s->positions[t] + 1, 0};
      }
    }
  }
  std::vector<float> logits(VOCAB);
  for (int r = 0; r < s->num_rows; ++r) {
    int t = s->rows[r], q = 0;
    if (t < 0 || t >= s->num_tokens || (r && t <= s->rows[r - 1])) return -9;
    while (s->seq_starts[q + 1] <= t) ++q;
    if (int code = logits_at(e, s, q, s->positions[t], logits.data())) return code;
    if (s->logits) memcpy(s->logits + (int64_t)r * VOCAB, logits.data(), VOCAB * sizeof(float));
    if (!s->sampling) continue;
    const LlmcSampling& how = s->sampling[r];
    if (how.position != (uint32_t)s->positions[t] + 1 || how.history_len != (int32_t)how.position) return -12;
    if (how.history[how.history_len - 1] != s->token_ids[t]) return -13;
    s->out_tokens[r] = isfinite(logits[0]) ? choose(how, logits.data()) : -1;
    if (s->out_tokens[r] >= 0) log_probs(s, r, logits.data(), s->out_tokens[r], how.num_logprobs);
  }
  return 0;
}

extern "C" {
uint32_t llmc_abi_version(void) { return LLMC_ABI_VERSION; }
int32_t llmc_kv_groups(void) { return GROUPS; }
int64_t llmc_kv_block_bytes(int32_t group) { return block_bytes(group); }
int64_t llmc_arena_bytes(const LlmcConfig*) { return VOCAB * sizeof(float); }
#if LLMC_ABI_VERSION >= 3  // test_previous_abi.py compiles it for the one before as well
// Steps run in the caller's thread alone; of a pool only what is promised of it is checked.
LlmcPool* llmc_pool_create(int32_t num_threads) { return new LlmcPool{num_threads}; }
void llmc_pool_destroy(LlmcPool* pool) { delete pool; }
static bool pool_fits(const LlmcConfig* c) { return !c->pool || c->pool->num_threads == c->num_threads; }
#else
static bool pool_fits(const LlmcConfig*) { return true; }
#endif
LlmcEngine* llmc_create(const LlmcConfig* c) {
  if (!pool_fits(c)) return nullptr;
  if (!c->weights || (uintptr_t)c->weights % 64) return nullptr;
  LlmcEngine* e = new LlmcEngine{*c, {c->kv, c->kv + GROUPS}, 0};
  memcpy(&e->salt, c->weights, sizeof e->salt);
  for (int g = 0; g < GROUPS; ++g) {
    if (!e->kv[g].base || (uintptr_t)e->kv[g].base % 64) return delete e, nullptr;
    // A fresh pool holds whatever: an answer must not depend on it.
    memset(e->kv[g].base, 0xA5, e->kv[g].num_blocks * block_bytes(g));
  }
  return e;
}
void llmc_destroy(LlmcEngine* e) { delete e; }
int32_t llmc_prefill(LlmcEngine* e, const LlmcStep* s) { return run(e, s, false); }
int32_t llmc_decode(LlmcEngine* e, const LlmcStep* s) { return run(e, s, true); }
}
