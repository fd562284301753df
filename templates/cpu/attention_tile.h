// Micro-kernels of attention: R query rows that share a kv head against one KV block.
//
//   score_tile<Kv, R>    out[r][32] = q[r] . k of 32 positions (unscaled; unwritten positions give garbage in their
//                        own lanes only)
//   value_tile<Kv, R, C>  acc[r] += sum over positions from <= p < to of weight[r][p] * v[p], C vectors of columns
//
// numerics (canonical, independent of R): a score is one fma chain over even d plus one over odd d (KvBf16, Kv8) or one
// chain over d (KvF32), then times the position's scale (Kv8); a value is one fma chain over ascending positions. q and
// the weights stay f32, K and V are widened.
#pragma once
#include "kv.h"
#include "tile.h"

namespace llmc {

#if defined(LLMC_AVX512)
constexpr int QUERY_ROWS = 6, VALUE_VECTORS = 4, SCORE_GROUPS = 2;
#elif defined(LLMC_AVX2)
constexpr int QUERY_ROWS = 2, VALUE_VECTORS = 2, SCORE_GROUPS = 1;
#else
constexpr int QUERY_ROWS = 1, VALUE_VECTORS = 1, SCORE_GROUPS = 1;
#endif
constexpr int SPLIT = 256;  // positions whose softmax is computed at once; splits combine in ascending order

#define LLMC_GROUPS LLMC_UNROLL for (int g = 0; g < SCORE_GROUPS; ++g)
#define LLMC_COLUMNS LLMC_UNROLL for (int c = 0; c < C; ++c)

// SCORE_GROUPS groups of 16 positions, `stride` bytes apart. q: [R][q_stride] f32, zero beyond d.
template <int R>
LLMC_INLINE void score_groups(KvBf16, const uint8_t* k, const float* q, int64_t q_stride, int d, int64_t next,
                              float* out, int64_t out_stride) {
  const int pairs = (d + 1) / 2;
  f32x16 even[R][SCORE_GROUPS], odd[R][SCORE_GROUPS];
  LLMC_ROWS LLMC_GROUPS even[r][g] = odd[r][g] = splat(0.0f);
  for (int i = 0; i < pairs; ++i, q += 2) {
    f32x16 e[SCORE_GROUPS], o[SCORE_GROUPS];
    LLMC_GROUPS {
      const uint8_t* p = k + ((int64_t)g * pairs + i) * 64;
      prefetch(p + next);
      e[g] = pair_even(load_i32(p));
      o[g] = pair_odd(load_i32(p));
    }
    LLMC_ROWS {
      f32x16 a = splat(q[r * q_stride]), b = splat(q[r * q_stride + 1]);
      LLMC_GROUPS even[r][g] = fma(e[g], a, even[r][g]);
      LLMC_GROUPS odd[r][g] = fma(o[g], b, odd[r][g]);
    }
  }
  LLMC_ROWS LLMC_GROUPS store(out + r * out_stride + 16 * g, even[r][g] + odd[r][g]);
}

// Bytes J and J + 1 of four d: an even and an odd one.
template <int R, bool FP8, int J>
LLMC_INLINE void add_two(const uint8_t* k, int64_t group, const float* q, int64_t q_stride,
                         f32x16 (&even)[R][SCORE_GROUPS], f32x16 (&odd)[R][SCORE_GROUPS]) {
  f32x16 e[SCORE_GROUPS], o[SCORE_GROUPS];
  LLMC_GROUPS {
    const i32x16 codes = load_i32(k + g * group);
    e[g] = kv_values<FP8, J>(codes);
    o[g] = kv_values<FP8, J + 1>(codes);
  }
  LLMC_ROWS {
    f32x16 a = splat(q[r * q_stride]), b = splat(q[r * q_stride + 1]);
    LLMC_GROUPS even[r][g] = fma(e[g], a, even[r][g]);
    LLMC_GROUPS odd[r][g] = fma(o[g], b, odd[r][g]);
  }
}

template <int R>
LLMC_INLINE void score_groups(KvF32, const uint8_t* k, const float* q, int64_t q_stride, int d, int64_t next,
                              float* out, int64_t out_stride) {
  f32x16 acc[R][SCORE_GROUPS];
  LLMC_ROWS LLMC_GROUPS acc[r][g] = splat(0.0f);
  for (int i = 0; i < d; ++i) {
    f32x16 kk[SCORE_GROUPS];
    LLMC_GROUPS {
      const uint8_t* p = k + ((int64_t)g * d + i) * 64;
      prefetch(p + next);
      kk[g] = load((const float*)p);
    }
    LLMC_ROWS {
      f32x16 a = splat(q[r * q_stride + i]);
      LLMC_GROUPS acc[r][g] = fma(kk[g], a, acc[r][g]);
    }
  }
  LLMC_ROWS LLMC_GROUPS store(out + r * out_stride + 16 * g, acc[r][g]);
}

template <int R, bool FP8>
LLMC_INLINE void score_groups(Kv8<FP8>, const uint8_t* k, const float* q, int64_t q_stride, int d, int64_t next,
                              float* out, int64_t out_stride) {
  const int fours = (d + 3) / 4;
  const int64_t group = Kv8<FP8>::k_codes(d) + 64;
  f32x16 even[R][SCORE_GROUPS], odd[R][SCORE_GROUPS];
  LLMC_ROWS LLMC_GROUPS even[r][g] = odd[r][g] = splat(0.0f);
  for (int i = 0; i < fours; ++i, q += 4) {
    LLMC_GROUPS prefetch(k + g * group + i * 64 + next);
    add_two<R, FP8, 0>(k + i * 64, group, q, q_stride, even, odd);
    add_two<R, FP8, 2>(k + i * 64, group, q + 2, q_stride, even, odd);
  }
  LLMC_ROWS LLMC_GROUPS {
    const f32x16 scale = load((const float*)(k + g * group + fours * 64));
    store(out + r * out_stride + 16 * g, (even[r][g] + odd[r][g]) * scale);
  }
}

// acc[r][c] += weight[r] * v[c], v the even or odd position of a pair.
template <int R, int C, bool ODD>
LLMC_INLINE void add_position(const uint8_t* v, const float* weight, int64_t weight_stride, f32x16 (&acc)[R][C]) {
  f32x16 vv[C];
  LLMC_COLUMNS vv[c] = ODD ? pair_odd(load_i32(v + 64 * c)) : pair_even(load_i32(v + 64 * c));
  LLMC_ROWS {
    f32x16 a = splat(weight[r * weight_stride]);
    LLMC_COLUMNS acc[r][c] = fma(vv[c], a, acc[r][c]);
  }
}

// v: the block's V from the first of the C * 16 columns; from and to are positions inside the block.
template <int R, int C>
LLMC_INLINE void value_block(KvBf16, const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride, int from,
                             int to, float* out, int64_t out_stride) {
  const int64_t row = round_up(dv, 16) * 4;
  f32x16 acc[R][C];
  LLMC_ROWS LLMC_COLUMNS acc[r][c] = load(out + r * out_stride + 16 * c);
  int p = from;
  if (p % 2 && p < to) {
    add_position<R, C, true>(v + p / 2 * row, weight + p, weight_stride, acc);
    ++p;
  }
  for (; p + 2 <= to; p += 2) {
    add_position<R, C, false>(v + p / 2 * row, weight + p, weight_stride, acc);
    load_again();  // the pairs: keeping them over the rows would cost registers
    add_position<R, C, true>(v + p / 2 * row, weight + p + 1, weight_stride, acc);
  }
  if (p < to) add_position<R, C, false>(v + p / 2 * row, weight + p, weight_stride, acc);
  LLMC_ROWS LLMC_COLUMNS store(out + r * out_stride + 16 * c, acc[r][c]);
}

template <int R, int C>
LLMC_INLINE void value_block(KvF32, const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride, int from,
                             int to, float* out, int64_t out_stride) {
  const int64_t row = round_up(dv, 16) * 4;
  f32x16 acc[R][C];
  LLMC_ROWS LLMC_COLUMNS acc[r][c] = load(out + r * out_stride + 16 * c);
  for (int p = from; p < to; ++p) {
    f32x16 vv[C];
    LLMC_COLUMNS vv[c] = load((const float*)(v + p * row + 64 * c));
    LLMC_ROWS {
      f32x16 a = splat(weight[r * weight_stride + p]);
      LLMC_COLUMNS acc[r][c] = fma(vv[c], a, acc[r][c]);
    }
  }
  LLMC_ROWS LLMC_COLUMNS store(out + r * out_stride + 16 * c, acc[r][c]);
}

// Position J of four: weights are times the positions' scales already (attention_split.h).
template <int R, int C, bool FP8, int J>
LLMC_INLINE void add_scaled(const uint8_t* v, const float* weight, int64_t weight_stride, f32x16 (&acc)[R][C]) {
  f32x16 vv[C];
  LLMC_COLUMNS vv[c] = kv_values<FP8, J>(load_i32(v + 64 * c));
  LLMC_ROWS {
    f32x16 a = splat(weight[r * weight_stride]);
    LLMC_COLUMNS acc[r][c] = fma(vv[c], a, acc[r][c]);
  }
  load_again();  // the fours: keeping them over the rows would cost registers
}

template <int R, int C, bool FP8>
LLMC_INLINE void value_block(Kv8<FP8>, const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride,
                             int from, int to, float* out, int64_t out_stride) {
  const int64_t row = round_up(dv, 16) * 4;
  f32x16 acc[R][C];
  LLMC_ROWS LLMC_COLUMNS acc[r][c] = load(out + r * out_stride + 16 * c);
  for (int p = from / 4 * 4; p < to; p += 4) {
    const uint8_t* four = v + p / 4 * row;
    if (p >= from) add_scaled<R, C, FP8, 0>(four, weight + p, weight_stride, acc);
    if (p + 1 >= from && p + 1 < to) add_scaled<R, C, FP8, 1>(four, weight + p + 1, weight_stride, acc);
    if (p + 2 >= from && p + 2 < to) add_scaled<R, C, FP8, 2>(four, weight + p + 2, weight_stride, acc);
    if (p + 3 >= from && p + 3 < to) add_scaled<R, C, FP8, 3>(four, weight + p + 3, weight_stride, acc);
  }
  LLMC_ROWS LLMC_COLUMNS store(out + r * out_stride + 16 * c, acc[r][c]);
}

#undef LLMC_GROUPS
#undef LLMC_COLUMNS

template <class Kv, int R>
__attribute__((noinline)) void score_tile(const uint8_t* k, const float* q, int64_t q_stride, int d,
                                          const uint8_t* next, float* out, int64_t out_stride) {
  const int64_t group = Kv::k_bytes(d) / 2;
  for (int g = 0; g < 2; g += SCORE_GROUPS)
    score_groups<R>(Kv{}, k + g * group, q, q_stride, d, next - k, out + 16 * g, out_stride);
}
template <class Kv, int R, int C>
__attribute__((noinline)) void value_tile(const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride,
                                          int from, int to, float* out, int64_t out_stride) {
  value_block<R, C>(Kv{}, v, dv, weight, weight_stride, from, to, out, out_stride);
}

}  // namespace llmc
