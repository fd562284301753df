// Micro-kernels of attention: R query rows that share a kv head against one KV block.
//
//   score_block<Kv, R>   out[r][32] = q[r] . k of 32 positions (unscaled; unwritten positions give garbage in their
//                        own lanes only)
//   value_block<Kv, R, C>  acc[r] += sum over positions from <= p < to of weight[r][p] * v[p], C vectors of columns
//
// numerics (canonical, independent of R): a score is one fma chain over even d plus one over odd d (KvBf16) or one chain
// over d (KvF32); a value is one fma chain over ascending positions. q and the weights stay f32, K and V are widened.
#pragma once
#include "kv.h"
#include "tile.h"

namespace llmc {

#if defined(LLMC_AVX512)
constexpr int QUERY_ROWS = 6, VALUE_VECTORS = 4;
#elif defined(LLMC_AVX2)
constexpr int QUERY_ROWS = 2, VALUE_VECTORS = 2;
#else
constexpr int QUERY_ROWS = 1, VALUE_VECTORS = 1;
#endif
constexpr int SPLIT = 256;  // positions whose softmax is computed at once; splits combine in ascending order

#define LLMC_ROWS LLMC_UNROLL for (int r = 0; r < R; ++r)

// q: [R][q_stride] f32, zero beyond d.
template <int R>
LLMC_INLINE void score_block(KvBf16, const uint8_t* k, const float* q, int64_t q_stride, int d, const uint8_t* next,
                             float* out, int64_t out_stride) {
  const int pairs = (d + 1) / 2;
  f32x16 even[R][2], odd[R][2];
  LLMC_ROWS LLMC_UNROLL for (int g = 0; g < 2; ++g) even[r][g] = odd[r][g] = splat(0.0f);
  for (int i = 0; i < pairs; ++i) {
    i32x16 kk[2];
    LLMC_UNROLL for (int g = 0; g < 2; ++g) {
      int64_t at = ((int64_t)g * pairs + i) * 64;
      kk[g] = load_i32(k + at);
      prefetch(next + at);
    }
    LLMC_UNROLL for (int g = 0; g < 2; ++g) {
      f32x16 e = pair_even(kk[g]), o = pair_odd(kk[g]);
      LLMC_ROWS even[r][g] = fma(e, splat(q[r * q_stride + 2 * i]), even[r][g]);
      LLMC_ROWS odd[r][g] = fma(o, splat(q[r * q_stride + 2 * i + 1]), odd[r][g]);
    }
  }
  LLMC_ROWS LLMC_UNROLL for (int g = 0; g < 2; ++g) store(out + r * out_stride + 16 * g, even[r][g] + odd[r][g]);
}

template <int R>
LLMC_INLINE void score_block(KvF32, const uint8_t* k, const float* q, int64_t q_stride, int d, const uint8_t* next,
                             float* out, int64_t out_stride) {
  f32x16 acc[R][2];
  LLMC_ROWS LLMC_UNROLL for (int g = 0; g < 2; ++g) acc[r][g] = splat(0.0f);
  for (int i = 0; i < d; ++i) {
    LLMC_UNROLL for (int g = 0; g < 2; ++g) {
      int64_t at = ((int64_t)g * d + i) * 64;
      f32x16 kk = load((const float*)(k + at));
      prefetch(next + at);
      LLMC_ROWS acc[r][g] = fma(kk, splat(q[r * q_stride + i]), acc[r][g]);
    }
  }
  LLMC_ROWS LLMC_UNROLL for (int g = 0; g < 2; ++g) store(out + r * out_stride + 16 * g, acc[r][g]);
}

// v: the block's V from the first of the C * 16 columns; from and to are positions inside the block.
template <int R, int C>
LLMC_INLINE void value_block(KvBf16, const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride, int from,
                             int to, float* out, int64_t out_stride) {
  const int64_t row = round_up(dv, 16) * 4;
  f32x16 acc[R][C];
  LLMC_ROWS LLMC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = load(out + r * out_stride + 16 * c);
  int p = from;
  if (p % 2 && p < to) {
    LLMC_UNROLL for (int c = 0; c < C; ++c) {
      f32x16 o = pair_odd(load_i32(v + p / 2 * row + 64 * c));
      LLMC_ROWS acc[r][c] = fma(o, splat(weight[r * weight_stride + p]), acc[r][c]);
    }
    ++p;
  }
  for (; p + 2 <= to; p += 2)
    LLMC_UNROLL for (int c = 0; c < C; ++c) {
      i32x16 vv = load_i32(v + p / 2 * row + 64 * c);
      f32x16 e = pair_even(vv), o = pair_odd(vv);
      LLMC_ROWS acc[r][c] = fma(e, splat(weight[r * weight_stride + p]), acc[r][c]);
      LLMC_ROWS acc[r][c] = fma(o, splat(weight[r * weight_stride + p + 1]), acc[r][c]);
    }
  if (p < to)
    LLMC_UNROLL for (int c = 0; c < C; ++c) {
      f32x16 e = pair_even(load_i32(v + p / 2 * row + 64 * c));
      LLMC_ROWS acc[r][c] = fma(e, splat(weight[r * weight_stride + p]), acc[r][c]);
    }
  LLMC_ROWS LLMC_UNROLL for (int c = 0; c < C; ++c) store(out + r * out_stride + 16 * c, acc[r][c]);
}

template <int R, int C>
LLMC_INLINE void value_block(KvF32, const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride, int from,
                             int to, float* out, int64_t out_stride) {
  const int64_t row = round_up(dv, 16) * 4;
  f32x16 acc[R][C];
  LLMC_ROWS LLMC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = load(out + r * out_stride + 16 * c);
  for (int p = from; p < to; ++p)
    LLMC_UNROLL for (int c = 0; c < C; ++c) {
      f32x16 vv = load((const float*)(v + p * row + 64 * c));
      LLMC_ROWS acc[r][c] = fma(vv, splat(weight[r * weight_stride + p]), acc[r][c]);
    }
  LLMC_ROWS LLMC_UNROLL for (int c = 0; c < C; ++c) store(out + r * out_stride + 16 * c, acc[r][c]);
}

#undef LLMC_ROWS

template <class Kv, int R>
__attribute__((noinline)) void score_tile(const uint8_t* k, const float* q, int64_t q_stride, int d,
                                          const uint8_t* next, float* out, int64_t out_stride) {
  score_block<R>(Kv{}, k, q, q_stride, d, next, out, out_stride);
}
template <class Kv, int R, int C>
__attribute__((noinline)) void value_tile(const uint8_t* v, int64_t dv, const float* weight, int64_t weight_stride,
                                          int from, int to, float* out, int64_t out_stride) {
  value_block<R, C>(Kv{}, v, dv, weight, weight_stride, from, to, out, out_stride);
}

// Calls body(integral R) for rows = 1 .. QUERY_ROWS.
template <int R> struct Rows { static constexpr int value = R; };
template <class Body> LLMC_INLINE void with_rows(int rows, Body body) {
  switch (rows) {
    case 1: return body(Rows<1>{});
#if defined(LLMC_AVX512) || defined(LLMC_AVX2)
    case 2: return body(Rows<2>{});
#endif
#if defined(LLMC_AVX512)
    case 3: return body(Rows<3>{});
    case 4: return body(Rows<4>{});
    case 5: return body(Rows<5>{});
    case 6: return body(Rows<6>{});
#endif
  }
}

}  // namespace llmc
