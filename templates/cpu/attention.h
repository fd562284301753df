// Causal attention over the paged KV pool, for any mix of prefill chunks and single tokens.
//
//   attention<Kv>(AttentionShape, AttentionBatch, pool, slot, q, out, scratch, worker)
//
// abi: every worker calls it with the same arguments; it may hold one barrier. K and V of every token of the step are in
//   the pool before the call. q f32 [T, q_heads * d]; out(row, head, col, n, y) gets 16 columns of a head's result, n of
//   them real: StoreHeads writes f32 [T, q_heads * dv]. scratch: attention_scratch_bytes().
// numerics (canonical: the order depends on the position alone): f32 throughout. Positions are cut into splits of SPLIT
//   at multiples of SPLIT. In a split: score = q.k * scale, softcapped, plus the ALiBi slope times (key - query); its
//   maximum m; weights exp(score - m); their sum l in 16 lanes over ascending groups; values (attention_tile.h). Splits
//   combine in ascending order by rescaling to the larger maximum; the sink counts as a last one without a value.
//   A position outside of a row's causal range, window or chunk is never multiplied in, so what unwritten or later
//   positions hold cannot leak; blocks behind the first one that a tile's rows see are not touched.
// limits: d, dv <= MAX_HEAD_DIM; q_heads a multiple of the slot's heads.
#pragma once
#include "attention_split.h"
#include "threads.h"

namespace llmc {

constexpr int SPLIT_HEADER = 16;  // floats before a stored split's values: maximum, sum, padding

// Few rows over long sequences are shared out by splits, whose partial results go through scratch.
LLMC_INLINE bool few_rows(int64_t tokens, int kv_heads, int workers) { return tokens * kv_heads < 4 * workers; }
inline int64_t attention_scratch_bytes(int workers, int q_heads, int kv_heads, int dv, int64_t max_seq_len) {
  int64_t splits = (max_seq_len + SPLIT - 1) / SPLIT;
  return 4 * workers * (int64_t)(q_heads / kv_heads) * splits * (round_up(dv, 16) + SPLIT_HEADER) * 4;
}


// A unit of work: consecutive tokens of a sequence times one kv head; its query rows go through in tiles.
struct AttentionUnit {
  int seq, first, tokens, kv_head;  // first: row of q
};

// Calls body(index, unit) for every unit, in one fixed order.
template <class Body>
LLMC_INLINE void each_unit(const AttentionBatch& batch, int kv_heads, int group, Body body) {
  const int most = group >= 48 ? 1 : 48 / group;  // tokens of a unit: some 48 query rows
  int64_t index = 0;
  for (int s = 0; s < batch.num_seqs; ++s)
    for (int first = batch.seq_starts[s]; first < batch.seq_starts[s + 1]; first += most) {
      int left = batch.seq_starts[s + 1] - first;
      for (int h = 0; h < kv_heads; ++h) body(index++, AttentionUnit{s, first, left < most ? left : most, h});
    }
}

// Calls body(tile) for the query rows of a unit, QUERY_ROWS at a time.
template <class Body>
LLMC_INLINE void each_tile(const AttentionShape& shape, const AttentionBatch& batch, const AttentionUnit& u, int group,
                           Body body) {
  const int rows = u.tokens * group;
  for (int first = 0; first < rows; first += QUERY_ROWS) {
    QueryTile t;
    t.first = first == 0;
    t.rows = rows - first < QUERY_ROWS ? rows - first : QUERY_ROWS;
    for (int r = 0; r < t.rows; ++r) {
      t.row[r] = u.first + (first + r) / group;
      t.head[r] = u.kv_head * group + (first + r) % group;
      t.position[r] = batch.positions[t.row[r]];
      const int64_t window = shape.window ? t.position[r] - shape.window + 1 : 0;
      const int64_t chunk = shape.chunk ? t.position[r] / shape.chunk * shape.chunk : 0;
      t.low[r] = window > chunk ? window : chunk;
    }
    body(t);
  }
}

LLMC_INLINE int64_t first_split(const QueryTile& t) {
  int64_t low = t.low[0];
  for (int r = 1; r < t.rows; ++r) low = t.low[r] < low ? t.low[r] : low;
  return low / SPLIT;
}
LLMC_INLINE int64_t last_split(const QueryTile& t) {
  int64_t high = t.position[0];
  for (int r = 1; r < t.rows; ++r) high = t.position[r] > high ? t.position[r] : high;
  return high / SPLIT;
}

// A tile from its first position to its last, by one worker.
template <class Kv, class Out>
inline void whole_tile(const AttentionJob<Kv>& job, const QueryTile& t, const Out& out) {
  alignas(64) float q[QUERY_ROWS * MAX_HEAD_DIM], value[QUERY_ROWS][VALUE_STRIDE], total[QUERY_ROWS][VALUE_STRIDE];
  float m[QUERY_ROWS], l[QUERY_ROWS], largest[QUERY_ROWS], sum[QUERY_ROWS];
  job.load_queries(t, q);
  for (int r = 0; r < t.rows; ++r) {
    largest[r] = -__builtin_inff();
    sum[r] = 0.0f;
    for (int i = 0; i < job.slot.dv; i += 16) store(&total[r][i], splat(0.0f));
  }
  for (int64_t s = first_split(t); s <= last_split(t); ++s) {
    job.split(t, q, s * SPLIT, m, l, value);
    for (int r = 0; r < t.rows; ++r)
      combine_split(&largest[r], &sum[r], total[r], m[r], l[r], value[r], job.slot.dv);
  }
  for (int r = 0; r < t.rows; ++r) job.finish(t.row[r], t.head[r], largest[r], sum[r], total[r], out);
}

// Partial results of (row of q, query head, split) in scratch: maximum, sum, then the values.
struct SplitStore {
  float* base;
  int q_heads;
  int64_t splits, stride;
  inline float* at(int row, int head, int64_t split) const {
    return base + (((int64_t)row * q_heads + head) * splits + split) * stride;
  }
};

template <class Kv>
inline void store_split(const AttentionJob<Kv>& job, const QueryTile& t, int64_t split, const SplitStore& partial) {
  alignas(64) float q[QUERY_ROWS * MAX_HEAD_DIM], value[QUERY_ROWS][VALUE_STRIDE];
  float m[QUERY_ROWS], l[QUERY_ROWS];
  job.load_queries(t, q);
  job.split(t, q, split * SPLIT, m, l, value);
  for (int r = 0; r < t.rows; ++r) {
    float* to = partial.at(t.row[r], t.head[r], split);
    to[0] = m[r];
    to[1] = l[r];
    for (int i = 0; i < job.slot.dv; i += 16) store(to + SPLIT_HEADER + i, load(&value[r][i]));
  }
}

template <class Kv, class Out>
inline void combine_tile(const AttentionJob<Kv>& job, const QueryTile& t, const SplitStore& partial, const Out& out) {
  alignas(64) float total[MAX_HEAD_DIM];
  for (int r = 0; r < t.rows; ++r) {
    float largest = -__builtin_inff(), sum = 0.0f;
    for (int i = 0; i < job.slot.dv; i += 16) store(total + i, splat(0.0f));
    for (int64_t s = first_split(t); s <= last_split(t); ++s) {
      const float* p = partial.at(t.row[r], t.head[r], s);
      combine_split(&largest, &sum, total, p[0], p[1], p + SPLIT_HEADER, job.slot.dv);
    }
    job.finish(t.row[r], t.head[r], largest, sum, total, out);
  }
}

template <class Kv, class Out>
__attribute__((noinline)) void attention(const AttentionShape& shape, const AttentionBatch& batch, const KvPool& pool,
                                         const KvSlot<Kv>& slot, const float* q, const Out& out, void* scratch,
                                         const Worker& worker) {
  const int group = shape.q_heads / slot.heads, tokens = batch.seq_starts[batch.num_seqs];
  if (!few_rows(tokens, slot.heads, worker.count)) {
    each_unit(batch, slot.heads, group, [&](int64_t index, const AttentionUnit& u) {
      if (!worker.dealt(index)) return;
      AttentionJob<Kv> job{shape, pool, slot, q, u.seq, u.kv_head};
      each_tile(shape, batch, u, group, [&](const QueryTile& t) { whole_tile(job, t, out); });
    });
    return;
  }
  int64_t longest = 0;
  for (int t = 0; t < tokens; ++t) longest = batch.positions[t] > longest ? batch.positions[t] : longest;
  const SplitStore partial{(float*)scratch, shape.q_heads, longest / SPLIT + 1, round_up(slot.dv, 16) + SPLIT_HEADER};
  int64_t piece = 0;
  each_unit(batch, slot.heads, group, [&](int64_t, const AttentionUnit& u) {
    AttentionJob<Kv> job{shape, pool, slot, q, u.seq, u.kv_head};
    each_tile(shape, batch, u, group, [&](const QueryTile& t) {
      for (int64_t s = first_split(t); s <= last_split(t); ++s)
        if (worker.dealt(piece++)) store_split(job, t, s, partial);
    });
  });
  worker.sync();
  piece = 0;
  each_unit(batch, slot.heads, group, [&](int64_t, const AttentionUnit& u) {
    AttentionJob<Kv> job{shape, pool, slot, q, u.seq, u.kv_head};
    each_tile(shape, batch, u, group, [&](const QueryTile& t) {
      if (worker.dealt(piece++)) combine_tile(job, t, partial, out);
    });
  });
}

}  // namespace llmc
