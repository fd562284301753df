// winner.cuh - who wins the race of race.cuh: the tokens that filters keep, run by one block.
#pragma once
#include "race.cuh"
#include "selection.cuh"

template <int VALID, int THREADS, int LIST>
struct Winner {
  using Select = Selection<VALID, THREADS, LIST>;
  using Tokens = typename Select::Tokens;
  static constexpr int kWarps = THREADS / 32;

  struct Shared {  // of each warp's leader
    double scores[kWarps];
    int ids[kWarps];
  };

  // A thread's tokens in a round: the four of a counter, or one of the list. In the round before the first it is the
  // likeliest token, which every filter keeps, for all threads: it sets the bound.
  struct Runners {
    int id;  // of the first; then every 16th
    bool listed;
    Four x;  // -inf where there is none
  };
  static LLMC_DEVICE Runners runners(const typename Select::Shared& s, const Tokens& tokens, int likeliest,
                                     float largest, int base) {
    const int at = base + threadIdx.x;
    Runners r{likeliest, true, {{largest, -inf_f32(), -inf_f32(), -inf_f32()}}};
    if (base >= 0 && tokens.x) {
      r.id = at / 16 * 64 + at % 16;
      r.listed = false;
      LLMC_UNROLL
      for (int k = 0; k < 4; k++) r.x.x[k] = r.id + 16 * k < VALID ? flushed(tokens.x[r.id + 16 * k]) : -inf_f32();
    } else if (base >= 0) {
      r.x.x[0] = -inf_f32();
      if (at < tokens.end) r.id = s.list_id[at], r.x.x[0] = s.list_x[at];
    }
    return r;
  }
  static LLMC_DEVICE bool takes_part(const typename Select::Shared& s, const SampleRow& row, const Tokens& tokens,
                                     const Kept& kept, float x, int id, int place) {
    if (!kept.has(order_key(x), id)) return false;
    return row.min_p == 0.0f || Select::weight(s, tokens, x, place) >= row.min_p;
  }

  // Of kept tokens that weigh at least min_p; `likeliest` has the largest logit.
  static LLMC_DEVICE int of(Shared& own, const typename Select::Shared& s, const SampleRow& row, const Tokens& tokens,
                            const Kept& kept, float largest, int likeliest) {
    Race race(row, largest, likeliest);
    const int count = tokens.x ? (VALID + 63) / 64 * 16 : tokens.end;
    LLMC_NO_UNROLL
    for (int base = -THREADS; base < count; base += THREADS) {
      Runners now = runners(s, tokens, likeliest, largest, base);
      Four& x = now.x;
      if (race.hopeless(max_f32(max_f32(x.x[0], x.x[1]), max_f32(x.x[2], x.x[3])))) continue;
      Philox r = race.words(race_counter(now.id), 0);
      if (now.listed) r.word[0] = race_word(r, now.id);
      bool entered = false;
      LLMC_NO_UNROLL  // a score is long
      for (int k = 0; k < 4; k++) {
        const int id = now.id + 16 * k, place = base + threadIdx.x;
        if (race.may_win(x.x[0], r.word[0]) && (base < 0 || takes_part(s, row, tokens, kept, x.x[0], id, place))) {
          race.enter(x.x[0], id);
          entered = true;
        }
        x = {{x.x[1], x.x[2], x.x[3], -inf_f32()}};
        r = {{r.word[1], r.word[2], r.word[3], 0}};
      }
      if (__ballot_sync(0xffffffffu, entered)) race.share();
    }
    const Leader best = race.warp_leader();
    if ((threadIdx.x & 31) == 0) own.scores[threadIdx.x >> 5] = best.score, own.ids[threadIdx.x >> 5] = best.id;
    __syncthreads();
    Leader first{own.scores[0], own.ids[0]};
    for (int i = 1; i < kWarps; i++) first.take(own.scores[i], own.ids[i]);
    return first.id;
  }
};
