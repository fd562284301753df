// Timed loops for kernel_speed.py and sampling_speed.py: linear over many weights in turn (as a model's layers come),
// attention, sampling.
#include "attention.h"
#include "kernel_formats.h"
#include "linear.h"
#include "rows.h"
#include "sample.h"
#include "timed.h"

using namespace llmc;

template <class Body> static void with_format(int format, Body body) {
  switch (format) {
#define FORMAT(id, ...) \
  case id: return body(__VA_ARGS__{});
    LLMC_TIMED_FORMATS
  }
}

// One round runs the linear over `copies` weights one after the other, all of whose arrays lie `stride` bytes apart.
EXPORT int time_linear(int format, const Table* table, int64_t stride, int copies, int64_t n, int64_t k,
                       const void* operand, int64_t rows, float* out, int threads, int rounds, double* times) {
  int failed = 0;
  with_format(format, [&](auto f) {
    failed = timed(threads, rounds, times, [&](int, const Worker& worker) {
      for (int c = 0; c < copies; ++c) {
        const auto of = [&](const void* array) { return array ? (const uint8_t*)array + c * stride : nullptr; };
        const Weights weights{of(table->panels), of(table->scales), of(table->offsets), n, k};
        linear<decltype(f)>(weights, operand, rows, StoreRows{out, n, nullptr}, worker);
        worker.sync();
      }
    });
  });
  return failed;
}

// One sequence of `rows` tokens that ends at position length - 1, over a pool of shuffled blocks.
EXPORT int time_attention(int bf16, int q_heads, int kv_heads, int d, int64_t length, int rows, const float* q,
                          uint8_t* kv, const int32_t* table, int64_t block_bytes, float* out, int threads, int rounds,
                          double* times) {
  int32_t* positions = (int32_t*)malloc(4 * rows);
  for (int r = 0; r < rows; ++r) positions[r] = (int32_t)(length - rows + r);
  const int32_t starts[2] = {0, rows};
  const KvPool pool{kv, block_bytes, table, (length + BLOCK - 1) / BLOCK};
  const AttentionShape shape{q_heads, 0.125f, 0.0f, 0, 0, nullptr, nullptr};
  const AttentionBatch batch{1, starts, positions};
  void* scratch = malloc(attention_scratch_bytes(threads, q_heads, kv_heads, d, length));
  auto run = [&](auto format) {
    using Kv = decltype(format);
    const KvSlot<Kv> slot{0, kv_heads, d, d};
    return timed(threads, rounds, times, [&](int, const Worker& worker) {
      attention<Kv>(shape, batch, pool, slot, q, StoreHeads{out, (int64_t)q_heads * d, d}, scratch, worker);
    });
  };
  int failed = bf16 ? run(KvBf16{}) : run(KvF32{});
  free(scratch);
  free(positions);
  return failed;
}

// Round i chooses the token of row i.
EXPORT int time_sample(const LlmcSampling* sampling, const float* logits, int valid, int rounds, double* times) {
  int32_t token, ids[LLMC_MAX_LOGPROBS];
  float logprob, logprobs[LLMC_MAX_LOGPROBS];
  const SampleOutputs out{&token, &logprob, ids, logprobs};
  void* scratch = malloc(sample_scratch_bytes(valid));
  int failed = timed(1, rounds, times, [&](int i, const Worker& worker) {
    sample_rows(sampling + i, logits + (int64_t)i * valid, 1, valid, valid, out, scratch, worker);
  });
  free(scratch);
  return failed;
}
