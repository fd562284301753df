// The exported functions of abi.h around the generated steps (included once, at the end of the generated source).
#pragma once

namespace llmc {
namespace {

struct ArenaLayout {
  int64_t kv, seqs, tokens, rows, attention, sampling, end;
};

inline ArenaLayout arena_layout(const LlmcConfig& c) {
  ArenaLayout a;
  a.kv = 0;
  a.seqs = round_up(KV_GROUPS * (int64_t)sizeof(LlmcKvPool), 64);
  a.tokens = a.seqs + round_up(4 * (int64_t)c.max_tokens, 64);
  a.rows = a.tokens + c.max_tokens * ARENA_PER_TOKEN;
  a.attention = a.rows + c.max_rows * ARENA_PER_ROW;
  a.sampling = a.attention + round_up(attention_bytes(c.num_threads, c.max_seq_len), 64);
  a.end = a.sampling + round_up(c.num_threads * sample_scratch_bytes(VALID_TOKENS), 64);
  return a;
}

inline int32_t run(LlmcEngine* engine, const LlmcStep* step, void (*entry)(void*, const Worker&)) {
  for (int s = 0; s < step->num_seqs; ++s)
    for (int t = step->seq_starts[s]; t < step->seq_starts[s + 1]; ++t) engine->seqs[t] = s;
  KvPool pools[KV_GROUPS + 1];  // one more: an array of none is not C++
  for (int64_t g = 0; g < KV_GROUPS; ++g) {
    const int32_t* tables = step->block_tables + g * engine->config.max_seqs * step->block_table_stride;
    pools[g] = KvPool{(uint8_t*)engine->kv[g].base, KV_BLOCK_BYTES[g], tables, step->block_table_stride};
  }
  StepView args{*engine, *step, pools};
  pool_run(engine->pool, entry, &args);
  return 0;
}

}  // namespace
}  // namespace llmc

#define LLMC_EXPORT extern "C" __attribute__((visibility("default")))

LLMC_EXPORT uint32_t llmc_abi_version(void) { return LLMC_ABI_VERSION; }
LLMC_EXPORT int32_t llmc_kv_groups(void) { return llmc::KV_GROUPS; }
LLMC_EXPORT int64_t llmc_kv_block_bytes(int32_t group) { return llmc::KV_BLOCK_BYTES[group]; }
LLMC_EXPORT int64_t llmc_arena_bytes(const LlmcConfig* config) { return llmc::arena_layout(*config).end; }

LLMC_EXPORT LlmcPool* llmc_pool_create(int32_t num_threads) { return (LlmcPool*)llmc::pool_create(num_threads); }
LLMC_EXPORT void llmc_pool_destroy(LlmcPool* pool) { llmc::pool_destroy((llmc::Pool*)pool); }

LLMC_EXPORT LlmcEngine* llmc_create(const LlmcConfig* config) {
  const llmc::ArenaLayout a = llmc::arena_layout(*config);
  LlmcEngine* engine = (LlmcEngine*)calloc(1, sizeof(LlmcEngine));
  uint8_t* arena = (uint8_t*)aligned_alloc(64, (size_t)a.end);
  llmc::Pool* given = (llmc::Pool*)config->pool;
  llmc::Pool* pool = given ? llmc::pool_share(given, config->num_threads) : llmc::pool_create(config->num_threads);
  if (!engine || !arena || !pool) {
    if (!given) llmc::pool_destroy(pool);
    free(arena);
    free(engine);
    return nullptr;
  }
  *engine = LlmcEngine{*config,
                       pool,
                       arena,
                       (LlmcKvPool*)(arena + a.kv),
                       (int32_t*)(arena + a.seqs),
                       arena + a.tokens,
                       arena + a.rows,
                       arena + a.attention,
                       arena + a.sampling};
  for (int g = 0; g < llmc::KV_GROUPS; ++g) engine->kv[g] = config->kv[g];
  engine->config.kv = engine->kv;
  return engine;
}

LLMC_EXPORT void llmc_destroy(LlmcEngine* engine) {
  if (!engine->config.pool) llmc::pool_destroy(engine->pool);
  free(engine->arena);
  free(engine);
}

LLMC_EXPORT int32_t llmc_prefill(LlmcEngine* engine, const LlmcStep* step) {
  return llmc::run(engine, step, llmc::prefill);
}
LLMC_EXPORT int32_t llmc_decode(LlmcEngine* engine, const LlmcStep* step) {
  return llmc::run(engine, step, llmc::decode);
}
