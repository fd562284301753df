// attention_layer.cuh - one attention layer as both forms see it: its numbers, where its operands lie, and the two
// products by mma.sync on tiles of keys and values in shared memory.
#pragma once
#include "attention_softmax.cuh"
#include "kv.cuh"
#include "step.cuh"

LLMC_DEVICE void mma_half(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a, b0, b1); }
LLMC_DEVICE void mma_half(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(c, a, b0, b1); }
LLMC_DEVICE u32 pack_half(bf16, float lo, float hi) { return pack_bf16(lo, hi); }
LLMC_DEVICE u32 pack_half(f16, float lo, float hi) { return u32(to_f16(lo).bits) | u32(to_f16(hi).bits) << 16; }

struct alignas(8) FloatPair {
  float x, y;
};
// Two neighbouring results.
LLMC_DEVICE void store_pair(float* to, float x, float y) { *reinterpret_cast<FloatPair*>(to) = {x, y}; }
template <class H>
LLMC_DEVICE void store_pair(H* to, float x, float y) { store4(to, pack_half(H{}, x, y)); }
LLMC_DEVICE void store_one(float* to, float x) { *to = x; }
LLMC_DEVICE void store_one(bf16* to, float x) { *to = to_bf16(x); }
LLMC_DEVICE void store_one(f16* to, float x) { *to = to_f16(x); }

// What of a step attention reads: see step.cuh. Positions ascend inside a sequence.
struct StepArrays {
  const Counts* counts;
  const int *tables, *positions, *seqs, *seq_starts;
};

// T: bf16 or f16, of queries, keys, values and weights. HQ query heads read HKV heads of D key and DV value elements, all
// multiples of 8. SPLIT: keys of a split.
template <class T, int HQ, int HKV, int D, int DV, int SPLIT, class SIGHT, class SCORING, bool SINKS>
struct AttentionLayer {
  using Element = T;
  using Sees = SIGHT;
  using Scores = SCORING;
  using Slot = KvSlot<T, HKV, D, DV>;
  static constexpr int kHeads = HQ, kGroup = HQ / HKV, kD = D, kDv = DV, kSplit = SPLIT, kBlocks = SPLIT / kKvBlock;
  static constexpr bool kSinks = SINKS;
  static constexpr int kThreads = 128, kWarps = 4;
  static constexpr int kKeySteps = Slot::kDk / 16, kValueSteps = Slot::kDv / 16;  // MMA steps along a head
  static constexpr int kKeyChunks = kKeySteps * 2, kValueChunks = kValueSteps * 2;  // of 16 bytes
  static constexpr u32 kKeyBytes = SPLIT * Slot::kDk * 2, kValueBytes = SPLIT * Slot::kDv * 2;
  static_assert(HQ % HKV == 0 && D % 8 == 0 && DV % 8 == 0 && D <= 256 && DV <= 256, "heads");
  static_assert(SPLIT % 64 == 0, "each of four warps takes whole MMA tiles of 16 keys");

  // Bytes to 16-byte chunk `even + odd` of a row in a tile of rows of CHUNKS, odd 0 or 1, such that one chunk of eight
  // rows meets all banks once. Constants stand apart from what depends on the lane, so that few addresses are kept.
  template <int CHUNKS>
  static LLMC_DEVICE u32 offset(int row, int even, int odd) {
    constexpr int kSpan = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
    const int turned = odd ^ (row / (8 / kSpan) & (kSpan - 1));
    return u32(row * CHUNKS * 16 + even / kSpan * kSpan * 16 + (turned ^ even % kSpan) * 16);
  }

  // copy(row, chunk, rows, chunks, offset) for every chunk of ROWS rows, shared out over the block's threads: a thread's
  // first row and chunk, the constants from there to the one to copy, and its offset in the tile.
  template <int ROWS, int CHUNKS, class Copy>
  static LLMC_DEVICE void copy_rows(const Copy& copy) {
    constexpr int kLanes = CHUNKS & -CHUNKS, kStep = kThreads / kLanes;  // threads side by side, rows between two of one
    const int row = int(threadIdx.x) / kLanes, chunk = int(threadIdx.x) % kLanes;
    const u32 first = offset<CHUNKS>(row, chunk & ~1, chunk & 1);
    LLMC_UNROLL
    for (int i = 0; i < (ROWS + kStep - 1) / kStep; i++) {
      if (ROWS % kStep && row + i * kStep >= ROWS) break;
      const u32 turn = (i * kStep & 7) * 16;  // not 0 where a row fills a warp: then row and i * kStep share no bit
      LLMC_UNROLL
      for (int j = 0; j < CHUNKS / kLanes; j++)
        copy(row, chunk, i * kStep, j * kLanes, (first ^ turn) + (i * kStep * CHUNKS + j * kLanes) * 16);
    }
  }

  // Copies the positions first to last of the split at `base`, CHUNKS of each row of OF, from a layer's blocks; zeros for
  // other positions of their blocks. `at(block)` is the address of a block's 32 rows. Blocks without any such position
  // are not touched.
  template <int CHUNKS, int OF, class At>
  static LLMC_DEVICE void fetch(u32 to, const int* table, int base, int first, int last, const At& at, int num_chunks) {
    LLMC_UNROLL
    for (int b = 0; b < kBlocks; b++) {
      const int start = base + b * kKvBlock;
      if (start > last || start + kKvBlock <= first) continue;
      const T* from = at(table[start / kKvBlock]);
      copy_rows<kKvBlock, CHUNKS>([&](int row, int chunk, int rows, int chunks, u32 offset) {
        const T* mine = from + (row * OF + chunk) * 8;
        const int position = start + row + rows;
        const bool valid = first <= position && position <= last && (OF % CHUNKS == 0 || chunk + chunks < num_chunks);
        const T* source = OF == CHUNKS || valid ? mine + (rows * OF + chunks) * 8 : from;
        cp_async16(to + b * kKvBlock * CHUNKS * 16 + offset, source, valid);
      });
    }
  }
  static LLMC_DEVICE void fetch_keys(u32 to, const Slot& slot, int head, const int* table, int base, int first, int last) {
    const auto at = [&](int block) { return slot.key(block, head, 0); };
    fetch<kKeyChunks, kKeyChunks>(to, table, base, first, last, at, kKeyChunks);
  }
  // Of the values, the columns from CHUNKS * part on; zeros behind the last.
  template <int CHUNKS>
  static LLMC_DEVICE void fetch_values(u32 to, const Slot& slot, int head, const int* table, int base, int first, int last,
                                       int part) {
    const auto at = [&](int block) { return slot.value(block, head, 0) + part * CHUNKS * 8; };
    fetch<CHUNKS, kValueChunks>(to, table, base, first, last, at, kValueChunks - part * CHUNKS);
  }

  // ROWS query rows, the group's heads of a token side by side: row r is token r / kGroup, counted from row `first`.
  template <int ROWS>
  static LLMC_DEVICE void fetch_queries(u32 to, const T* q, int head, int first, int tokens) {
    copy_rows<ROWS, kKeyChunks>([&](int row, int chunk, int rows, int chunks, u32 offset) {
      const int at = first + row + rows, token = at / kGroup, member = at % kGroup;
      const bool valid = token < tokens && chunk + chunks < D / 8;
      const T* from = q + ((long long)(token)*HQ + head * kGroup + member) * D + (chunk + chunks) * 8;
      cp_async16(to + offset, valid ? from : q, valid);
    });
  }
  // The A fragment of 16 query rows from `row` on, MMA step d.
  static LLMC_DEVICE void query_fragment(u32 (&a)[4], u32 queries, int row, int d, int lane) {
    ldmatrix_x4(a, queries + row * kKeyChunks * 16 + offset<kKeyChunks>(lane & 15, d * 2, lane >> 4));
  }

  // s[0 .. 2N): 16 query rows times 16N keys from row `row` of the tile; query(fragment, d) gives their operands.
  template <int N, class Query>
  static LLMC_DEVICE void products(float (*s)[4], const Query& query, u32 keys, int row, int lane) {
    LLMC_UNROLL
    for (int n = 0; n < 2 * N; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    _Pragma("unroll 8")  // more at once, and wide heads keep too many addresses in registers
    for (int d = 0; d < kKeySteps; d++) {
      u32 a[4];
      query(a, d);
      LLMC_UNROLL
      for (int n = 0; n < N; n++) {
        u32 b[4];
        ldmatrix_x4(b, keys + (row + n * 16) * kKeyChunks * 16 + offset<kKeyChunks>((lane & 7) + (lane >> 4) * 8, d * 2, lane >> 3 & 1));
        mma_half(T{}, s[2 * n], a, b[0], b[1]);
        mma_half(T{}, s[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  // Weights of 16 keys, 8 and 8, as an A fragment.
  static LLMC_DEVICE void weight_fragment(u32 (&a)[4], const float (&low)[4], const float (&high)[4]) {
    LLMC_UNROLL
    for (int i = 0; i < 2; i++) {
      a[i] = pack_half(T{}, low[i * 2], low[i * 2 + 1]);
      a[2 + i] = pack_half(T{}, high[i * 2], high[i * 2 + 1]);
    }
  }
  // o += weights of 16 keys times 16 columns of their values, in a tile of rows of CHUNKS.
  template <int CHUNKS>
  static LLMC_DEVICE void weigh_values(float (*o)[4], const u32 (&a)[4], u32 values, int key, int column, int lane) {
    u32 b[4];
    ldmatrix_x4_trans(b, values + key * CHUNKS * 16 + offset<CHUNKS>(lane & 15, column * 2, lane >> 4));
    mma_half(T{}, o[0], a, b[0], b[1]);
    mma_half(T{}, o[1], a, b[2], b[3]);
  }
};
