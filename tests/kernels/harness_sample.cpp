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
EXPORT void philox_lanes(uint64_t key, const uint32_t* counters, uint32_t* out) {  // [4, 16] each
  Philox16 c;
  for (int i = 0; i < 4; ++i) c.word[i] = load_i32(counters + 16 * i);
  const Philox16 r = philox16(key, c);
  for (int i = 0; i < 4; ++i) store_i32(out + 16 * i, r.word[i]);
}
EXPORT int64_t sampling_bytes() { return sizeof(LlmcSampling); }
