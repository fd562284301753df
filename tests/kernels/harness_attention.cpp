#include "attention.h"
#include "harness.h"

using namespace llmc;

struct AttentionArgs {  // mirrored in test_attention.py
  int32_t q_heads, kv_heads, d, dv, window, chunk, num_seqs, table_stride, kind;  // kind: f32, bf16, int8, fp8
  float scale, softcap;
  const float *sinks, *slopes;
  const int32_t *seq_starts, *positions, *tables;
  uint8_t* pool;
  int64_t block_bytes, slot_offset, max_seq_len;
};

template <class Kv> static KvSlot<Kv> slot_of(const AttentionArgs& a) {
  return KvSlot<Kv>{a.slot_offset, a.kv_heads, a.d, a.dv};
}
template <class Body> static void with_kv(const AttentionArgs& a, Body body) {
  if (a.kind == 3) body(KvFp8{});
  else if (a.kind == 2) body(KvInt8{});
  else if (a.kind == 1) body(KvBf16{});
  else body(KvF32{});
}

EXPORT int64_t slot_bytes(const AttentionArgs* a) {
  int64_t n = 0;
  with_kv(*a, [&](auto kv) { n = slot_of<decltype(kv)>(*a).bytes(); });
  return n;
}

// Writes K and V of every token of the step, then attends. k [T, kv_heads * d], v [T, kv_heads * dv].
EXPORT int run_attention(const AttentionArgs* args, const float* q, const float* k, const float* v, float* out,
                         int threads) {
  const AttentionArgs& a = *args;
  const KvPool pool{a.pool, a.block_bytes, a.tables, a.table_stride};
  const AttentionShape shape{a.q_heads, a.scale, a.softcap, a.window, a.chunk, a.sinks, a.slopes};
  const AttentionBatch batch{a.num_seqs, a.seq_starts, a.positions};
  const StoreHeads store_heads{out, (int64_t)a.q_heads * a.dv, a.dv};
  void* scratch = malloc(attention_scratch_bytes(threads, a.q_heads, a.kv_heads, a.dv, a.max_seq_len));
  int failed = harness::on_pool(threads, [&](const Worker& worker) {
    with_kv(a, [&](auto kv) {
      const auto slot = slot_of<decltype(kv)>(a);
      if (worker.id == 0)
        for (int s = 0; s < a.num_seqs; ++s)
          for (int t = a.seq_starts[s]; t < a.seq_starts[s + 1]; ++t)
            kv_write(pool, slot, s, a.positions[t], k + (int64_t)t * a.kv_heads * a.d, v + (int64_t)t * a.kv_heads * a.dv);
      worker.sync();
      attention<decltype(kv)>(shape, batch, pool, slot, q, store_heads, scratch, worker);
    });
  });
  free(scratch);
  return failed;
}
