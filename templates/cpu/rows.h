// Row primitives: one f32 row of n values, any n. Generated kernels call them per row; what they are given as a literal
// n the compiler unrolls. In-place (y == x) is allowed unless said otherwise.
// numerics: f32; sums run in four interleaved vector chains (element i belongs to chain i / 16 % 4), added as
//   (0 + 1) + (2 + 3), then reduced by simd.h's tree: an order that depends on n alone.
#pragma once
#include "operand.h"
#include "simd_math.h"
#include "trig.h"

namespace llmc {

// y[i] = f(i, n_valid) for every group of 16: f returns a f32x16 whose first n_valid lanes are kept.
template <class F> LLMC_INLINE void map_row(float* y, int n, F f) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, f(i, 16));
  if (i < n) store(y + i, f(i, n - i), n - i);
}

// Sum of f(i, n_valid) over all lanes; f must give zero in lanes beyond n_valid.
template <class F> LLMC_INLINE float sum_row(int n, F f) {
  f32x16 s[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int i = 0;
  for (; i + 64 <= n; i += 64)
    LLMC_UNROLL for (int c = 0; c < 4; ++c) s[c] = s[c] + f(i + 16 * c, 16);
  LLMC_UNROLL for (int c = 0; c < 4; ++c) {
    int at = i + 16 * c;
    if (at < n) s[c] = s[c] + f(at, n - at < 16 ? n - at : 16);
  }
  return reduce_add((s[0] + s[1]) + (s[2] + s[3]));
}
LLMC_INLINE float sum_row(const float* x, int n) {
  return sum_row(n, [&](int i, int m) __attribute__((always_inline)) { return load(x + i, m); });
}

// Largest of f(i, n_valid); NaN where any value is NaN. f must give -inf in lanes beyond n_valid.
template <class F> LLMC_INLINE float max_row(int n, F f) {
  f32x16 m = splat(-__builtin_inff());
  for (int i = 0; i < n; i += 16) m = max(f(i, n - i < 16 ? n - i : 16), m);
  return lane_bits(is_nan(m)) ? __builtin_nanf("") : reduce_max(m);
}
LLMC_INLINE float max_row(const float* x, int n) {
  return max_row(n, [&](int i, int m) __attribute__((always_inline)) {
    return select(first_lanes(m), load(x + i, m), -__builtin_inff());
  });
}

// y = x / sqrt(mean(x^2) + eps) * weight; weight null: 1.
LLMC_INLINE void rms_norm_row(const float* x, const float* weight, float eps, float* y, int n) {
  float squares = sum_row(n, [&](int i, int m) __attribute__((always_inline)) {
    f32x16 v = load(x + i, m);
    return v * v;
  });
  float scale = 1.0f / __builtin_sqrtf(squares / (float)n + eps);
  map_row(y, n, [&](int i, int m) __attribute__((always_inline)) {
    f32x16 v = load(x + i, m) * scale;
    return weight ? v * load(weight + i, m) : v;
  });
}

// y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias; weight null: 1, bias null: 0.
LLMC_INLINE void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, float* y, int n) {
  float mean = sum_row(x, n) / (float)n;
  float squares = sum_row(n, [&](int i, int m) __attribute__((always_inline)) {
    f32x16 d = select(first_lanes(m), load(x + i, m) - mean, 0.0f);
    return d * d;
  });
  float scale = 1.0f / __builtin_sqrtf(squares / (float)n + eps);
  map_row(y, n, [&](int i, int m) __attribute__((always_inline)) {
    f32x16 v = (load(x + i, m) - mean) * scale;
    if (weight) v = v * load(weight + i, m);
    return bias ? v + load(bias + i, m) : v;
  });
}

LLMC_INLINE void softmax_row(const float* x, float* y, int n) {
  float largest = max_row(x, n);
  float sum = sum_row(n, [&](int i, int m) __attribute__((always_inline)) {
    f32x16 e = select(first_lanes(m), exp(load(x + i, m) - largest), 0.0f);
    store(y + i, e, m);
    return e;
  });
  map_row(y, n, [&](int i, int m) __attribute__((always_inline)) { return load(y + i, m) / sum; });
}

// Rotary angles of one position, as HF computes them: angle = f32(position) * inv_freq[i] in f32, then cos and sin
// times scale (the attention scaling of yarn and longrope). inv_freq, cosine, sine: [pairs].
inline void rope_angles(int32_t position, const float* inv_freq, float scale, float* cosine, float* sine, int pairs) {
  for (int i = 0; i < pairs; ++i) {
    float s, c;
    sin_cos((float)position * inv_freq[i], &s, &c);
    cosine[i] = c * scale;
    sine[i] = s * scale;
  }
}

enum class Rope { HALVES, INTERLEAVED };  // which dims turn together: (i, i + pairs) or (2i, 2i + 1)

// Rotates the first 2 * pairs dims of every head of one row [heads, head_dim], the rest is copied. In place is allowed.
//   first' = first * cos - second * sin;  second' = second * cos + first * sin
template <Rope STYLE>
LLMC_INLINE void rope_row(const float* x, float* y, int heads, int head_dim, int pairs, const float* cosine,
                          const float* sine) {
  for (int h = 0; h < heads; ++h, x += head_dim, y += head_dim) {
    if constexpr (STYLE == Rope::HALVES) {
      for (int i = 0; i < pairs; i += 16) {
        int m = pairs - i;
        f32x16 c = load(cosine + i, m), s = load(sine + i, m), a = load(x + i, m), b = load(x + pairs + i, m);
        store(y + i, a * c - b * s, m);
        store(y + pairs + i, b * c + a * s, m);
      }
    } else {
      for (int i = 0; i < pairs; ++i) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosine[i] - b * sine[i];
        y[2 * i + 1] = b * cosine[i] + a * sine[i];
      }
    }
    if (x != y)
      for (int i = 2 * pairs; i < head_dim; i += 16) store(y + i, load(x + i, head_dim - i), head_dim - i);
  }
}

// out = table[index], rows of n floats.
LLMC_INLINE void gather_row(const float* table, int64_t index, float* out, int n) {
  const float* row = table + index * n;
  map_row(out, n, [&](int i, int m) __attribute__((always_inline)) { return load(row + i, m); });
}

}  // namespace llmc
