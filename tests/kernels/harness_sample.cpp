#include "harness.h"
#include "sample.h"

using namespace llmc;

EXPORT int run_sample(const LlmcSampling* sampling, const float* logits, int rows, int64_t stride, int valid,
                      int32_t* tokens, float* logprob, int32_t* top_ids, float* top_logprobs, int threads) {
  const SampleOutputs out{tokens, logprob, top_ids, top_logprobs};
  void* scratch = malloc(threads * sample_scratch_bytes(valid) + 64);
  int failed = harness::on_pool(threads, [&](const Worker& worker) {
    sample_rows(sampling, logits, rows, stride, valid, out, scratch, worker);
  });
  free(scratch);
  return failed;
}
EXPORT void philox_block(uint64_t key, const uint32_t* counter, uint32_t* out) {
  Philox r = philox(key, Philox{{counter[0], counter[1], counter[2], counter[3]}});
  for (int i = 0; i < 4; ++i) out[i] = r.word[i];
}
EXPORT double draw_of(uint64_t seed, uint32_t sample_index, uint32_t position) {
  return token_draw(seed, sample_index, position);
}
EXPORT int64_t sampling_bytes() { return sizeof(LlmcSampling); }
