// attention_decode.cuh - attention of sequences that have one token in the step: every split in a block of its own, all
// of its keys and values in flight at once, four warps sharing the work; then the kernel that folds the splits.
// After FlashDecoding (Dao et al. 2023), with the sums of attention_prefill.cuh: warps share out keys for the scores and
// columns for the values, but no sum is cut in another way.
#pragma once
#include "attention_layer.cuh"

// Of one (sequence, query head, split) in scratch: {top, sum, -, -, values[kDv]}.
template <class Layer>
struct SplitStore {
  static constexpr int kHeader = 4, kFloats = kHeader + Layer::Slot::kDv;
  float* scratch;
  int max_splits;  // of a sequence
  LLMC_DEVICE float* at(int seq, int head, int split) const {
    return scratch + (((long long)(seq)*Layer::kHeads + head) * max_splits + split) * kFloats;
  }
};

// The token of a sequence that has just one in the step; -1 for others.
LLMC_DEVICE int only_token(const StepArrays& step, int seq) {
  if (seq >= step.counts->seqs) return -1;
  const int token = step.seq_starts[seq];
  return step.seq_starts[seq + 1] == token + 1 ? token : -1;
}

template <class Layer, class Out>
struct DecodeAttention {
  using T = typename Layer::Element;
  using Slot = typename Layer::Slot;
  using Scores = typename Layer::Scores;
  using Store = SplitStore<Layer>;
  static constexpr int kSplit = Layer::kSplit, kGroup = Layer::kGroup, kWarps = Layer::kWarps;
  static constexpr int kMine = kSplit / kWarps, kTiles = kMine / 8;  // keys of a warp
  static constexpr int kRowTiles = (kGroup + 15) / 16;               // query heads of the group in MMA tiles
  static constexpr u32 kQueryBytes = kRowTiles * 16 * Slot::kDk * 2, kWeightBytes = kSplit * 32;
  static constexpr u32 kTopBytes = kWarps * 16 * 4, kSumBytes = kWarps * 32 * 8;
  static constexpr u32 kSmemBytes =
      kQueryBytes + Layer::kKeyBytes + Layer::kValueBytes + kWeightBytes + kTopBytes + kSumBytes;

  // Grid (sequences, KV heads, splits that a query may see at most).
  static LLMC_DEVICE void run(const T* q, const Slot& slot, const StepArrays& step, const float* slopes, const Store& store,
                              const Scores& scoring) {
    LLMC_SMEM(raw);
    const u32 queries = smem_addr(raw), keys = queries + kQueryBytes, values = keys + Layer::kKeyBytes;
    Vec16* weights = reinterpret_cast<Vec16*>(raw + kQueryBytes + Layer::kKeyBytes + Layer::kValueBytes);  // [kSplit/16][32]
    float* tops = reinterpret_cast<float*>(weights + kSplit * 2);                                          // [kWarps][16]
    FloatPair* sums = reinterpret_cast<FloatPair*>(tops + kWarps * 16);                                    // [kWarps][32]
    const int seq = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x >> 5), 0);  // the compiler sees one for the warp
    grid_wait();
    const int token = only_token(step, seq);
    if (token < 0) return;
    const int last = step.positions[token], first = Layer::Sees::first_key(last);
    const int base = (first / kSplit + int(blockIdx.z)) * kSplit;
    if (base > last) return;

    const int* table = step.tables + (long long)(seq)*step.counts->table_stride;
    Layer::template fetch_queries<kRowTiles * 16>(queries, q, head, token * kGroup, token + 1);
    Layer::fetch_keys(keys, slot, head, table, base, first, last);
    cp_async_commit();
    Layer::template fetch_values<Layer::kValueChunks>(values, slot, head, table, base, first, last, 0);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();

    const int start = base + warp * kMine, block = start / kKvBlock * kKvBlock;
    const bool any = block <= last && block + kKvBlock > first, every = sees_all(first, last, start, start + kMine - 1);
    LLMC_UNROLL
    for (int tile = 0; tile < kRowTiles; tile++) {
      const int row = tile * 16 + (lane >> 2);  // and row + 8
      RowSight rows[2];
      LLMC_UNROLL
      for (int h = 0; h < 2; h++) {
        const int member = row + h * 8;
        rows[h] = {first, last, slopes && member < kGroup ? slopes[head * kGroup + member] * kLog2OfE : 0.0f};
      }
      float y[kTiles][4], top[2] = {no_score(), no_score()}, sum[2];
      if (any) {
        const auto query = [&](u32 (&a)[4], int d) { Layer::query_fragment(a, queries, tile * 16, d, lane); };
        Layer::template products<kTiles / 2>(y, query, keys, warp * kMine, lane);
        score_keys<kTiles>(y, scoring, rows, start + (lane & 3) * 2, every, top);
      } else {
        LLMC_UNROLL
        for (int n = 0; n < kTiles; n++) y[n][0] = y[n][1] = y[n][2] = y[n][3] = no_score();
      }
      LLMC_UNROLL
      for (int h = 0; h < 2; h++) {
        top[h] = row_max(top[h]);
        if ((lane & 3) == 0) tops[warp * 16 + (lane >> 2) + h * 8] = top[h];
      }
      __syncthreads();
      LLMC_UNROLL
      for (int w = 0; w < kWarps; w++)
        LLMC_UNROLL
        for (int h = 0; h < 2; h++)
          top[h] = max_of(top[h], tops[w * 16 + (lane >> 2) + h * 8]);
      weigh_keys<kTiles>(y, top, scoring.unit(), sum);
      sums[warp * 32 + lane] = {sum[0], sum[1]};
      LLMC_UNROLL
      for (int k = 0; k < kTiles / 2; k++) {
        u32 a[4];
        Layer::weight_fragment(a, y[2 * k], y[2 * k + 1]);
        weights[(warp * kTiles / 2 + k) * 32 + lane] = Vec16{{a[0], a[1], a[2], a[3]}};
      }
      if (tile == 0) cp_async_wait<0>();
      __syncthreads();
      if (tile == kRowTiles - 1) grid_launch_dependents();
      if (warp == 0) put_sums(store, sums, top, seq, head, row, lane);
      for (int c = warp; c < Layer::kValueSteps; c += kWarps) {
        float o[2][4] = {};
        LLMC_UNROLL
        for (int b = 0; b < Layer::kBlocks; b++) {
          if (base + b * kKvBlock > last || base + (b + 1) * kKvBlock <= first) continue;
          LLMC_UNROLL
          for (int k = 2 * b; k < 2 * b + 2; k++) {
            const Vec16 w = weights[k * 32 + lane];
            const u32 a[4] = {w.x[0], w.x[1], w.x[2], w.x[3]};
            Layer::template weigh_values<Layer::kValueChunks>(o, a, values, k * 16, c, lane);
          }
        }
        put_values(store, o, seq, head, row, c * 16 + (lane & 3) * 2);
      }
    }
  }

  static LLMC_DEVICE void put_sums(const Store& store, const FloatPair* sums, const float (&top)[2], int seq, int head, int row,
                                   int lane) {
    float sum[2] = {0.0f, 0.0f};
    LLMC_UNROLL
    for (int w = 0; w < kWarps; w++) {
      const FloatPair part = sums[w * 32 + lane];
      sum[0] += part.x, sum[1] += part.y;
    }
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      const float total = row_sum(sum[h]);
      if ((lane & 3) == 0 && row + h * 8 < kGroup)
        store_pair(store.at(seq, head * kGroup + row + h * 8, blockIdx.z), top[h], total);
    }
  }
  static LLMC_DEVICE void put_values(const Store& store, const float (&o)[2][4], int seq, int head, int row, int column) {
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
      if (row + h * 8 >= kGroup) continue;
      float* to = store.at(seq, head * kGroup + row + h * 8, blockIdx.z) + Store::kHeader + column;
      store_pair(to, o[0][h * 2], o[0][h * 2 + 1]);
      store_pair(to + 8, o[1][h * 2], o[1][h * 2 + 1]);
    }
  }

  // Folds the splits of one query head, in order. Grid (sequences, query heads), a thread per column.
  static LLMC_DEVICE void combine(const StepArrays& step, const float* sinks, const Store& store, Out* out,
                                  const Scores& scoring) {
    const int seq = blockIdx.x, head = blockIdx.y, column = threadIdx.x;
    grid_wait();
    const int token = only_token(step, seq);
    if (token < 0) return;
    const int last = step.positions[token], splits = last / kSplit - Layer::Sees::first_key(last) / kSplit + 1;
    RowSum row = no_row();
    float value = 0.0f;
    if (column < Layer::kDv) {
      for (int split = 0; split < splits; split++) {
        const float* from = store.at(seq, head, split);
        const FloatPair sum = *reinterpret_cast<const FloatPair*>(from);
        value = fold_split(row, {sum.x, sum.y}, scoring.unit()).value(from[Store::kHeader + column], value);
      }
    }
    grid_launch_dependents();
    if (column < Layer::kDv)
      store_one(out + ((long long)(token)*Layer::kHeads + head) * Layer::kDv + column,
                finish_value(value, finish_row<Layer::kSinks>(row, sinks, head, scoring.unit())));
  }
};
