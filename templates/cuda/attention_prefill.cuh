// attention_prefill.cuh - attention of any mix of prompt chunks and single tokens. A block owns 64 query rows of one KV
// head, its query heads packed side by side, a warp 16 of them; it sweeps the keys of each sequence among its rows in
// splits. After FlashAttention-2 (Dao 2023), but with splits that stand for themselves (attention_softmax.cuh).
#pragma once
#include "attention_layer.cuh"

// A sequence's tokens in a tile, [begin, end), and the positions they see, first to last.
struct Stretch {
  int seq, begin, end, first, last;
};

// MIN_TOKENS: sequences with fewer tokens in the step are left to the decode form. PARTS: blocks that share the columns of
// wide values, as one warp's registers do not hold them all; each computes the scores.
template <class Layer, class Out, int MIN_TOKENS, int PARTS>
struct PrefillAttention {
  using T = typename Layer::Element;
  using Slot = typename Layer::Slot;
  using Scores = typename Layer::Scores;
  static constexpr int kRows = Layer::kWarps * 16, kSplit = Layer::kSplit, kGroup = Layer::kGroup;
  static constexpr int kTiles = kSplit / 8, kQuarter = kTiles / 4, kSteps = Layer::kKeySteps;
  static constexpr int kPartSteps = (Layer::kValueSteps + PARTS - 1) / PARTS, kPartChunks = kPartSteps * 2;
  static_assert(MIN_TOKENS >= 1, "sequences without tokens are passed over");
  static constexpr u32 kQueryBytes = kRows * Slot::kDk * 2;
  static constexpr u32 kSmemBytes = kQueryBytes + Layer::kKeyBytes + kSplit * kPartChunks * 16;
  // In registers, where scores and values leave room for them; else they are read again for every cache block.
  static constexpr bool kQueriesStay = kSteps <= 8 && kSplit / 2 + kSteps * 4 + kPartSteps * 8 <= 128;

  // What a warp knows of its 16 rows.
  struct Warp {
    int tile_row, row, lane;  // its first row, in the tile and counted over all tokens; lane
    u32 queries[kQueriesStay ? kSteps : 1][4];
    float values[kPartChunks][4];
    RowSum rows[2];
  };

  static LLMC_DEVICE void run(const T* q, const Slot& slot, const StepArrays& step, const float* sinks, const float* slopes,
                              Out* out, const Scores& scoring) {
    LLMC_SMEM(raw);
    const u32 queries = smem_addr(raw);
    const int head = blockIdx.y, first_row = int(gridDim.x - 1 - blockIdx.x) * kRows;  // the longest contexts start first
    grid_wait();
    const int tokens = step.counts->tokens;
    if (first_row >= tokens * kGroup) return;
    Layer::template fetch_queries<kRows>(queries, q, head, first_row, tokens);
    cp_async_commit();
    const int tile_row = __shfl_sync(0xffffffffu, int(threadIdx.x >> 5), 0) * 16;  // the compiler sees one for the warp
    Warp warp{tile_row, first_row + tile_row, int(threadIdx.x & 31), {}, {}, {no_row(), no_row()}};
    const int begin = first_row / kGroup, last = (first_row + kRows - 1) / kGroup, end = min_of(last + 1, tokens);
    bool loaded = false;
    for (int seq = step.seqs[begin]; seq <= step.seqs[end - 1]; seq++) {
      const int start = step.seq_starts[seq], stop = step.seq_starts[seq + 1];
      Stretch s{seq, max_of(start, begin), min_of(stop, end), 0, 0};
      if (stop - start < MIN_TOKENS) continue;
      s.first = Layer::Sees::first_key(step.positions[s.begin]), s.last = step.positions[s.end - 1];
      sweep(warp, s, queries, slot, head, step, slopes, scoring, loaded);
    }
    cp_async_wait<0>();
    grid_launch_dependents();
    store(warp, step, head, tokens, sinks, out, scoring);
  }

  static LLMC_DEVICE void sweep(Warp& warp, const Stretch& s, u32 queries, const Slot& slot, int head, const StepArrays& step,
                                const float* slopes, const Scores& scoring, bool& loaded) {
    const u32 keys = queries + kQueryBytes, values = keys + Layer::kKeyBytes;
    const int* table = step.tables + (long long)(s.seq) * step.counts->table_stride;
    RowSight rows[2];
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      const int row = warp.row + (warp.lane >> 2) + h * 8, token = row / kGroup;
      const bool mine = s.begin <= token && token < s.end;
      rows[h].last = mine ? step.positions[token] : -1;
      rows[h].first = mine ? Layer::Sees::first_key(rows[h].last) : 0;
      rows[h].slope = slopes ? slopes[head * kGroup + row % kGroup] * kLog2OfE : 0.0f;
    }
    // Of the warp's rows in this stretch: keys that any of them sees, keys that all of the warp's rows see.
    const int low = warp.row / kGroup, high = (warp.row + 15) / kGroup;
    const int from = max_of(low, s.begin), to = min_of(high, s.end - 1);
    const bool any = from <= to, whole = low == from && high == to;
    const int any_first = any ? Layer::Sees::first_key(step.positions[from]) : 0, any_last = any ? step.positions[to] : -1;
    const int all_first = any ? Layer::Sees::first_key(any_last) : 0, all_last = any && whole ? step.positions[from] : -1;

    const int last_split = s.last / kSplit;
    Layer::fetch_keys(keys, slot, head, table, s.first / kSplit * kSplit, s.first, s.last);
    cp_async_commit();
    for (int split = s.first / kSplit; split <= last_split; split++) {
      const int base = split * kSplit;
      Layer::template fetch_values<kPartChunks>(values, slot, head, table, base, s.first, s.last, blockIdx.z);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      if (kQueriesStay && !loaded) {
        LLMC_UNROLL
        for (int d = 0; d < kSteps; d++)
          Layer::query_fragment(warp.queries[kQueriesStay ? d : 0], queries, warp.tile_row, d, warp.lane);
        loaded = true;
      }
      const auto query = [&](u32 (&a)[4], int d) {
        if (kQueriesStay) {
          LLMC_UNROLL
          for (int i = 0; i < 4; i++) a[i] = warp.queries[kQueriesStay ? d : 0][i];
        } else {
          Layer::query_fragment(a, queries, warp.tile_row, d, warp.lane);
        }
      };
      float y[kTiles][4], top[2] = {no_score(), no_score()};
      u32 seen = 0;  // a bit for each cache block of which a row of this warp sees a key
      LLMC_UNROLL
      for (int b = 0; b < Layer::kBlocks; b++) {
        const int start = base + b * kKvBlock, stop = start + kKvBlock - 1;
        if (start <= any_last && stop >= any_first) {
          seen |= 1u << b;
          Layer::template products<2>(y + b * 4, query, keys, b * kKvBlock, warp.lane);
          const bool every = sees_all(all_first, all_last, start, stop);
          score_keys<4>(y + b * 4, scoring, rows, start + (warp.lane & 3) * 2, every, top);
        } else {
          LLMC_UNROLL
          for (int n = 0; n < 4; n++) y[b * 4 + n][0] = y[b * 4 + n][1] = y[b * 4 + n][2] = y[b * 4 + n][3] = no_score();
        }
      }
      __syncthreads();  // every warp is done with the keys
      Layer::fetch_keys(keys, slot, head, table, base + kSplit, s.first, s.last);
      cp_async_commit();
      u32 weights[kTiles / 2][4];
      Fold fold[2];
      if (seen) {
        float sum[2] = {0.0f, 0.0f};
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) top[h] = row_max(top[h]);
        LLMC_UNROLL
        for (int quarter = 0; quarter < 4; quarter++) {
          float part[2];
          weigh_keys<kQuarter>(y + quarter * kQuarter, top, scoring.unit(), part);
          sum[0] += part[0], sum[1] += part[1];
        }
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) fold[h] = fold_split(warp.rows[h], {top[h], row_sum(sum[h])}, scoring.unit());
        LLMC_UNROLL
        for (int k = 0; k < kTiles / 2; k++) Layer::weight_fragment(weights[k], y[2 * k], y[2 * k + 1]);
      }
      cp_async_wait<1>();
      __syncthreads();
      if (seen) add_values(warp, weights, fold, values, seen);
      __syncthreads();  // every warp is done with the values
    }
  }

  // The values of one split, 32 columns at a time, folded into the warp's.
  static LLMC_DEVICE void add_values(Warp& warp, const u32 (&weights)[kTiles / 2][4], const Fold (&fold)[2], u32 values, u32 seen) {
    LLMC_UNROLL
    for (int c = 0; c < kPartSteps; c += 2) {
      const int wide = c + 1 < kPartSteps ? 2 : 1;
      float o[4][4] = {};
      LLMC_UNROLL
      for (int b = 0; b < Layer::kBlocks; b++) {
        if (!(seen >> b & 1)) continue;
        LLMC_UNROLL
        for (int k = 2 * b; k < 2 * b + 2; k++)
          LLMC_UNROLL
          for (int i = 0; i < wide; i++) Layer::template weigh_values<kPartChunks>(o + 2 * i, weights[k], values, k * 16, c + i, warp.lane);
      }
      LLMC_UNROLL
      for (int n = 0; n < 2 * wide; n++)
        LLMC_UNROLL
        for (int e = 0; e < 4; e++) {
          float& total = warp.values[c * 2 + n][e];
          total = fold[e >> 1].value(o[n][e], total);
        }
    }
  }

  static LLMC_DEVICE void store(const Warp& warp, const StepArrays& step, int head, int tokens, const float* sinks, Out* out,
                                const Scores& scoring) {
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      const int row = warp.row + (warp.lane >> 2) + h * 8, token = row / kGroup;
      if (token >= tokens) continue;
      const int seq = step.seqs[token], query_head = head * kGroup + row % kGroup;
      if (step.seq_starts[seq + 1] - step.seq_starts[seq] < MIN_TOKENS) continue;
      const float factor = finish_row<Layer::kSinks>(warp.rows[h], sinks, query_head, scoring.unit());
      const int column = int(blockIdx.z) * kPartChunks * 8;
      Out* to = out + ((long long)(token)*Layer::kHeads + query_head) * Layer::kDv + column;
      LLMC_UNROLL
      for (int n = 0; n < kPartChunks; n++)
        if (Layer::kDv % (kPartChunks * 8) == 0 || column + n * 8 < Layer::kDv) store_pair(to + n * 8 + (warp.lane & 3) * 2, finish_value(warp.values[n][h * 2], factor),
                   finish_value(warp.values[n][h * 2 + 1], factor));
    }
  }
};
