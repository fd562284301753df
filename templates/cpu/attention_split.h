// One split of attention: the softmax of a tile of query rows over at most SPLIT positions, and how splits combine.
// Contract and numerics: attention.h.
#pragma once
#include "attention_tile.h"
#include "simd_math.h"
#include "threads.h"

namespace llmc {

constexpr int MAX_HEAD_DIM = 1024;
constexpr int VALUE_STRIDE = MAX_HEAD_DIM + 16;  // floats between rows of results: an odd number of cache lines

struct AttentionShape {
  int q_heads;
  float scale;
  float softcap;       // scores become softcap * tanh(score / softcap); 0 = off
  int window;          // a query sees its own and the window - 1 positions before it; 0 = all
  int chunk;           // and none before the multiple of chunk at or before its own; 0 = all
  const float* sinks;  // [q_heads] logit of a virtual key without a value, or null
  const float* slopes; // [q_heads] ALiBi, or null
};

struct AttentionBatch {
  int num_seqs;
  const int32_t* seq_starts;  // [num_seqs + 1] into the rows of q
  const int32_t* positions;   // [T] ascending by one inside a sequence
};

struct StoreHeads {
  float* out;
  int64_t stride;  // q_heads * dv
  int dv;
  inline __attribute__((always_inline)) void operator()(int row, int head, int col, int n, f32x16 y) const {
    store(out + row * stride + (int64_t)head * dv + col, y, n);
  }
};

// Adds a split (m, l, values) to row r's state (largest, sum, total); an empty split (m = -inf) changes nothing.
LLMC_INLINE void combine_split(float* largest, float* sum, float* total, float m, float l, const float* value, int dv) {
  if (m == -__builtin_inff()) return;
  float top = *largest > m ? *largest : m;
  float v[2] = {*largest - top, m - top}, e[16] = {};
  store(e, exp(load(v, 2)));
  f32x16 a = splat(e[0]), b = splat(e[1]);
  *largest = top;
  *sum = *sum * e[0] + l * e[1];
  for (int i = 0; i < dv; i += 16) store(total + i, load(total + i) * a + load(value + i) * b);
}

constexpr int Q_STEP = 4;  // q is padded with zeros to what any cache reads at a time

// The rows of one tile: the same sequence and kv head.
struct QueryTile {
  bool first;                                        // of its unit
  int rows;
  int row[QUERY_ROWS], head[QUERY_ROWS];             // row of q and out, query head
  int64_t position[QUERY_ROWS], low[QUERY_ROWS];     // attends to low .. position
};

template <class Kv> struct AttentionJob {
  const AttentionShape& shape;
  const KvPool& pool;
  const KvSlot<Kv>& slot;
  const float* q;
  int seq, kv_head;

  inline const uint8_t* head_at(int64_t position) const {
    return pool.block(seq, position) + slot.offset + kv_head * slot.head_bytes();
  }

  // Scores of rows against the positions of one split, masked to -inf outside of [low, position].
  inline void scores(const QueryTile& t, const float* q_tile, int64_t from, int64_t to, float (*out)[SPLIT]) const {
    const int64_t q_stride = round_up(slot.d, Q_STEP);
    for (int64_t p = from; p < to; p += BLOCK) {
      const uint8_t* k = head_at(p);
      const uint8_t *next = p + BLOCK < to ? head_at(p + BLOCK) : k, *v = k + Kv::k_bytes(slot.d);
      if (t.first)  // V, which follows: by the time that the scores are there, it is
        for (int64_t i = 0; i < Kv::v_bytes(slot.dv); i += 64) prefetch_l2(v + i);
      with_rows<1, QUERY_ROWS>(t.rows, [&](auto rows) __attribute__((always_inline)) {
        score_tile<Kv, decltype(rows)::value>(k, q_tile, q_stride, slot.d, next, &out[0][p % SPLIT], SPLIT);
      });
    }
    for (int r = 0; r < t.rows; ++r) {
      const float slope = shape.slopes ? shape.slopes[t.head[r]] : 0.0f;
      for (int64_t p = from; p < to; p += 16) {
        float* at = &out[r][p % SPLIT];
        f32x16 s = load(at) * shape.scale;
        if (shape.softcap != 0.0f) s = shape.softcap * tanh(s / shape.softcap);
        i32x16 key = add_i32(lane_ids(), splat_i32((int32_t)p));
        if (shape.slopes) s = s + slope * to_f32(sub_i32(key, splat_i32((int32_t)t.position[r])));
        s = select(lt_i32(key, splat_i32((int32_t)t.position[r] + 1)), s, -__builtin_inff());
        s = select(lt_i32(key, splat_i32((int32_t)t.low[r])), -__builtin_inff(), s);
        store(at, s);
      }
    }
  }

  // value[r] += weights times V over positions [from, to) for rows first .. first + rows - 1.
  inline void values(int first, int rows, int64_t from, int64_t to, const float (*weight)[SPLIT],
                     float (*value)[VALUE_STRIDE]) const {
    const int vectors = (slot.dv + 15) / 16;
    for (int64_t p = from / BLOCK * BLOCK; p < to; p += BLOCK) {
      const uint8_t* v = head_at(p) + Kv::k_bytes(slot.d);
      const int a = (int)(from > p ? from - p : 0), b = (int)(to - p < BLOCK ? to - p : BLOCK);
      const float* w = &weight[first][p % SPLIT];
      with_rows<1, QUERY_ROWS>(rows, [&](auto r) __attribute__((always_inline)) {
        constexpr int R = decltype(r)::value, C = VALUE_VECTORS;
        int c = 0;
        for (; c + C <= vectors; c += C)
          value_tile<Kv, R, C>(v + 64 * c, slot.dv, w, SPLIT, a, b, &value[first][16 * c], VALUE_STRIDE);
        for (; c < vectors; ++c)
          value_tile<Kv, R, 1>(v + 64 * c, slot.dv, w, SPLIT, a, b, &value[first][16 * c], VALUE_STRIDE);
      });
    }
  }

  // Sixteen weights times their positions' scales of V.
  inline void scale_weights(int64_t p, float* weight) const {
    const uint8_t* scales = head_at(p) + Kv::k_bytes(slot.d) + Kv::v_codes(slot.dv);
    store(weight, load(weight) * load((const float*)scales + p % BLOCK));
  }

  // One split of a tile: maxima, sums and values of every row; rows without a position in it get m = -inf.
  inline void split(const QueryTile& t, const float* q_tile, int64_t begin, float* m, float* l,
                    float (*value)[VALUE_STRIDE]) const {
    alignas(64) float weight[QUERY_ROWS][SPLIT];
    int64_t low = INT64_MAX, high = 0, common_low = 0, common_high = INT64_MAX;
    for (int r = 0; r < t.rows; ++r) {
      int64_t a = t.low[r] > begin ? t.low[r] : begin, b = t.position[r] + 1;
      b = b < begin + SPLIT ? b : begin + SPLIT;
      low = a < low ? a : low;
      high = b > high ? b : high;
      common_low = a > common_low ? a : common_low;
      common_high = b < common_high ? b : common_high;
      m[r] = -__builtin_inff();
    }
    if (low >= high) return;
    low = low / BLOCK * BLOCK;
    scores(t, q_tile, low, high, weight);
    for (int r = 0; r < t.rows; ++r) {
      f32x16 largest = splat(-__builtin_inff()), sum = splat(0.0f);
      for (int64_t p = low; p < high; p += 16) largest = max_raw(largest, load(&weight[r][p % SPLIT]));
      m[r] = reduce_max(largest);
      for (int64_t p = low; p < high; p += 16) {
        f32x16 e = exp(load(&weight[r][p % SPLIT]) - m[r]);
        sum = sum + e;
        store(&weight[r][p % SPLIT], e);
      }
      l[r] = reduce_add(sum);
      if constexpr (Kv::SCALED)
        for (int64_t p = low; p < high; p += 16) scale_weights(p, &weight[r][p % SPLIT]);
      for (int i = 0; i < slot.dv; i += 16) store(&value[r][i], splat(0.0f));
    }
    const bool common = common_low < common_high;
    for (int r = 0; r < t.rows; ++r) {
      int64_t a = t.low[r] > begin ? t.low[r] : begin, b = t.position[r] + 1;
      b = b < begin + SPLIT ? b : begin + SPLIT;
      values(r, 1, a, common ? common_low : b, weight, value);
    }
    if (!common) return;
    values(0, t.rows, common_low, common_high, weight, value);
    for (int r = 0; r < t.rows; ++r) {
      int64_t b = t.position[r] + 1;
      values(r, 1, common_high, b < begin + SPLIT ? b : begin + SPLIT, weight, value);
    }
  }

  inline void load_queries(const QueryTile& t, float* q_tile) const {
    const int64_t stride = round_up(slot.d, Q_STEP);
    for (int r = 0; r < t.rows; ++r) {
      const float* x = q + ((int64_t)t.row[r] * shape.q_heads + t.head[r]) * slot.d;
      for (int i = 0; i < slot.d; i += 16) store(q_tile + r * stride + i, load(x + i, slot.d - i), slot.d - i);
      for (int64_t i = slot.d; i < stride; ++i) q_tile[r * stride + i] = 0.0f;
    }
  }

  // Adds the sink, divides and hands out one row.
  template <class Out>
  inline void finish(int row, int head, float m, float sum, const float* value, const Out& out) const {
    float scale = 1.0f;
    if (shape.sinks) {
      float sink = shape.sinks[head], top = m > sink ? m : sink, v[2] = {m - top, sink - top}, e[16] = {};
      store(e, exp(load(v, 2)));
      scale = e[0];
      sum = sum * e[0] + e[1];
    }
    for (int i = 0; i < slot.dv; i += 16)
      out(row, head, i, slot.dv - i < 16 ? slot.dv - i : 16, load(value + i) * scale / sum);
  }
};

}  // namespace llmc
