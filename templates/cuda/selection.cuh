// selection.cuh - a row's tokens, or a list of likely ones in shared memory, and selections among them by one block.
#pragma once
#include "select.cuh"

// Denormals count as zero, as in the CPU's kernels (templates/cpu/threads.h).
struct Four { float x[4]; };

LLMC_DEVICE float weight_of(float x, float largest, float temperature) {
  return flushed(exp_f32((x - largest) / temperature));
}
LLMC_DEVICE Four load_four(const float* x) {
  const Vec16 v = load16(x);
  Four f;
  LLMC_UNROLL
  for (int k = 0; k < 4; k++) f.x[k] = flushed(bits_float(v.x[k]));
  return f;
}

// Ids 0 .. VALID-1; the list holds LIST tokens.
template <int VALID, int THREADS, int LIST>
struct Selection {
  static constexpr int kWarps = THREADS / 32;
  static_assert(VALID >= 1 && VALID <= 1 << 18, "sums of 2^18 weights fit 64 bits");
  static_assert(LIST >= THREADS && LIST % 4 == 0, "a value of every thread, four entries at a time");

  struct Shared {
    u64 partial[kWarps], above;
    Bins bins;
    int digit;
    u32 listed;  // tokens meant for the list, those for which it had no room too
    float list_x[LIST], list_weight[LIST];
    int list_id[LIST];
  };

  // The tokens under selection: ids first .. end-1 of a row, or the first `end` entries of the list.
  struct Tokens {
    const float* x;  // null: the list
    int first, end;
    float largest, temperature;
    int scale;
  };
  // f(logit, id, live, place in the list) for every token, by whole warps: where !live there is none.
  template <class F>
  static LLMC_DEVICE void each(Shared& s, const Tokens& tokens, F f) {
    const int begin = tokens.first / 4 * 4 + threadIdx.x * 4;
    Four next{};
    if (tokens.x && begin < tokens.end) next = load_four(tokens.x + begin);
    for (int base = tokens.first / 4 * 4; base < tokens.end; base += THREADS * 4) {
      const int at = base + threadIdx.x * 4, after = at + THREADS * 4;
      Four now = next;
      if (tokens.x && after < tokens.end) next = load_four(tokens.x + after);
      LLMC_NO_UNROLL  // f is long
      for (int k = 0; k < 4; k++) {
        const bool live = at + k < tokens.end;
        const float x = tokens.x ? now.x[0] : live ? s.list_x[at + k] : 0.0f;
        f(x, tokens.x || !live ? at + k : s.list_id[at + k], live, at + k);
        now = {{now.x[1], now.x[2], now.x[3], 0.0f}};
      }
    }
  }
  static LLMC_DEVICE float weight(const Shared& s, const Tokens& tokens, float x, int place) {
    return tokens.x ? weight_of(x, tokens.largest, tokens.temperature) : s.list_weight[place];
  }
  // One for a token, or its weight, if it is kept; else 0.
  static LLMC_DEVICE u64 measure(const Shared& s, const Tokens& tokens, const Kept& kept, bool weighs, float x, int id,
                                 int place) {
    if (!kept.has(order_key(x), id)) return 0;
    return weighs ? fixed_point(weight(s, tokens, x, place), tokens.scale) : 1;
  }

  // A barrier lies between two calls.
  static LLMC_DEVICE u64 block_sum(Shared& s, u64 v) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) s.partial[threadIdx.x >> 5] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < kWarps; i++) v += s.partial[i];
    return v;
  }

  // The levels of a selection: four digits of the order key, then those of the id, low ids first; eight bits each.
  static constexpr int id_levels() {
    int n = 1;
    while (VALID - 1 >> 8 * n) n++;
    return n;
  }
  static constexpr int kKeyLevels = 4, kLevels = kKeyLevels + id_levels(), kIdMask = (1 << 8 * id_levels()) - 1;
  struct Place {
    bool found;
    u32 key;
    int id;
  };

  // Where the measure of kept tokens, added up in the order of levels 0 .. end-1, reaches target.
  static LLMC_DEVICE Place reach(Shared& s, Tokens tokens, Kept kept, bool weighs, u64 target, int end) {
    u32 key = 0, rank = 0;  // the digits found so far
    u64 above = 0;
    LLMC_NO_UNROLL
    for (int level = 0; level != end; level++) {
      const bool by_id = level >= kKeyLevels;
      const int shift = 8 * ((by_id ? kLevels : kKeyLevels) - 1 - level);
      for (int i = threadIdx.x; i < 256; i += THREADS) s.bins.low[i] = s.bins.high[i] = 0;
      __syncthreads();
      each(s, tokens, [&](float x, int id, bool live, int place) {
        const u32 mine = by_id ? u32(kIdMask - id) : order_key(x), so_far = by_id ? rank : key;
        live = live && (mine ^ so_far) >> shift >> 8 == 0;
        s.bins.add(mine >> shift & 255, live ? measure(s, tokens, kept, weighs, x, id, place) : 0);
      });
      __syncthreads();
      if (threadIdx.x < 32) {
        int digit;
        if (s.bins.find(target, digit, above)) s.digit = digit, s.above = above;
      }
      __syncthreads();
      if (s.digit < 0) return {false, 0, 0};
      above = s.above;
      if (!by_id) {
        key |= u32(s.digit) << shift;
        if (level == kKeyLevels - 1) kept = {key, key, key == kept.lowest ? kept.last_id : 0x7fffffff};
      } else {
        rank |= u32(s.digit) << shift;
        if (tokens.x) {  // the ids that these digits leave
          const int behind = kIdMask - int(rank) + 1;
          tokens.end = min_of(behind, tokens.end);
          tokens.first = max_of(behind - (1 << shift), 0);
        }
      }
    }
    return {true, key, kIdMask - int(rank)};
  }
  // Adds a token to the list, or counts it where the list is full.
  static LLMC_DEVICE void append(Shared& s, float x, float w, int id) {
    const u32 at = smem_atomic_add(smem_addr(&s.listed), 1);
    if (at < LIST) s.list_x[at] = x, s.list_weight[at] = w, s.list_id[at] = id;
  }

  // A barrier lies between two calls: those of reach() do.
  static LLMC_DEVICE u64 kept_weight(Shared& s, const Tokens& tokens, const Kept& kept) {
    u64 sum = 0;
    each(s, tokens, [&](float x, int id, bool live, int place) {
      if (live) sum += measure(s, tokens, kept, true, x, id, place);
    });
    return block_sum(s, sum);
  }
};
