// What a generated engine is made of: its state, and one step as the generated code sees it.
#pragma once
#include "abi.h"
#include "kv.h"
#include "sample.h"
#include "threads.h"


struct LlmcEngine {
  LlmcConfig config;
  llmc::Pool* pool;
  uint8_t* arena;
  LlmcKvPool* kv;     // [groups]
  int32_t* seqs;      // [max_tokens] sequence of each token of the step
  uint8_t* tokens;    // buffers of one row per token
  uint8_t* rows;      // buffers of one row per sampled row
  uint8_t* attention;  // scratch
  uint8_t* sampling;   // scratch
};

namespace llmc {

constexpr int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

struct StepView {
  const LlmcEngine& engine;
  const LlmcStep& in;
  const KvPool* kv;  // [groups]

  template <class T> LLMC_METHOD T* token_rows(int64_t offset) const {
    return (T*)(engine.tokens + engine.config.max_tokens * offset);
  }
  template <class T> LLMC_METHOD T* sampled_rows(int64_t offset) const {
    return (T*)(engine.rows + engine.config.max_rows * offset);
  }
  template <class T> LLMC_METHOD const T* weight(int64_t offset) const {
    return (const T*)((const uint8_t*)engine.config.weights + offset);
  }
};

// Hands the rows' logits to the caller, and chooses their tokens, as far as the step asks for either.
inline void finish_rows(const StepView& s, const float* logits, int rows, int vocab, int valid, const Worker& worker) {
  if (s.in.logits)
    for (int r = worker.id; r < rows; r += worker.count)
      __builtin_memcpy(s.in.logits + (int64_t)r * vocab, logits + (int64_t)r * vocab, (size_t)vocab * 4);
  if (!s.in.sampling) return;
  const SampleOutputs out{s.in.out_tokens, s.in.out_logprob, s.in.out_top_ids, s.in.out_top_logprobs};
  sample_rows(s.in.sampling, logits, rows, vocab, valid, out, s.engine.sampling, worker);
}

}  // namespace llmc
