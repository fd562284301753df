#include "harness.h"
#include "rows.h"

using namespace llmc;

using Unary = f32x16 (*)(f32x16);
template <f32x16 (*F)(f32x16)> static void map_all(const float* x, float* y, int n) {
  map_row(y, n, [&](int i, int m) { return F(load(x + i, m)); });
}
static f32x16 unary_exp(f32x16 x) { return exp(x); }
static f32x16 unary_log(f32x16 x) { return log(x); }
static f32x16 unary_tanh(f32x16 x) { return tanh(x); }
static f32x16 unary_erf(f32x16 x) { return erf(x); }
static f32x16 unary_sin(f32x16 x) { return sin(x); }
static f32x16 unary_cos(f32x16 x) { return cos(x); }
static f32x16 unary_sigmoid(f32x16 x) { return sigmoid(x); }
static f32x16 unary_silu(f32x16 x) { return silu(x); }
static f32x16 unary_gelu_erf(f32x16 x) { return gelu_erf(x); }
static f32x16 unary_gelu_tanh(f32x16 x) { return gelu_tanh(x); }
static f32x16 unary_softplus(f32x16 x) { return softplus(x); }
static f32x16 unary_sqrt(f32x16 x) { return sqrt(x); }
static f32x16 unary_rsqrt(f32x16 x) { return rsqrt(x); }
static f32x16 unary_round(f32x16 x) { return round(x); }
static f32x16 unary_floor(f32x16 x) { return floor(x); }
static f32x16 unary_ceil(f32x16 x) { return ceil(x); }
static f32x16 unary_trunc(f32x16 x) { return trunc(x); }
static f32x16 unary_abs(f32x16 x) { return abs(x); }
static f32x16 unary_neg(f32x16 x) { return neg(x); }
static f32x16 unary_relu(f32x16 x) { return relu(x); }

#define UNARY(name) EXPORT void simd_##name(const float* x, float* y, int n) { map_all<unary_##name>(x, y, n); }
UNARY(exp) UNARY(log) UNARY(tanh) UNARY(erf) UNARY(sin) UNARY(cos) UNARY(sigmoid) UNARY(silu) UNARY(gelu_erf)
UNARY(gelu_tanh) UNARY(softplus) UNARY(sqrt) UNARY(rsqrt) UNARY(round) UNARY(floor) UNARY(ceil) UNARY(trunc)
UNARY(abs) UNARY(neg) UNARY(relu)

#define BINARY(name) \
  EXPORT void simd_##name(const float* a, const float* b, float* y, int n) { \
    map_row(y, n, [&](int i, int m) { return name(load(a + i, m), load(b + i, m)); }); \
  }
BINARY(max) BINARY(min) BINARY(copysign)

EXPORT void simd_bf16(const float* x, uint16_t* y, int n) {
  for (int i = 0; i < n; i += 16) store_bf16(y + i, load(x + i));
}
EXPORT void simd_bf16_scalar(const float* x, uint16_t* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}
EXPORT void simd_to_i32(const float* x, int32_t* y, int n) {
  for (int i = 0; i < n; i += 16) store_i32(y + i, to_i32(load(x + i)));
}
EXPORT void simd_store_s8(const int32_t* x, int8_t* y, int n) {
  for (int i = 0; i < n; i += 16) store_s8(y + i, load_i32(x + i));
}
// u [n, 64] unsigned, s [n, 64] signed, acc [n, 16]
EXPORT void simd_dot_i8(const uint8_t* u, const int8_t* s, int32_t* acc, int n) {
  for (int i = 0; i < n; ++i)
    store_i32(acc + 16 * i, dot_i8(load_i32(acc + 16 * i), load_i32(u + 64 * i), load_i32(s + 64 * i)));
}
EXPORT float simd_reduce_add(const float* x) { return reduce_add(load(x)); }
EXPORT float simd_reduce_max(const float* x) { return reduce_max(load(x)); }

EXPORT float row_sum(const float* x, int n) { return sum_row(x, n); }
EXPORT float row_max(const float* x, int n) { return max_row(x, n); }
EXPORT void row_rms_norm(const float* x, const float* w, float eps, float* y, int n) { rms_norm_row(x, w, eps, y, n); }
EXPORT void row_layer_norm(const float* x, const float* w, const float* b, float eps, float* y, int n) {
  layer_norm_row(x, w, b, eps, y, n);
}
EXPORT void row_softmax(const float* x, float* y, int n) { softmax_row(x, y, n); }
EXPORT void row_rope_angles(int position, const float* inv_freq, float scale, float* c, float* s, int pairs) {
  rope_angles(position, inv_freq, scale, c, s, pairs);
}
EXPORT void row_rope(int interleaved, const float* x, float* y, int heads, int head_dim, int pairs, const float* c,
                     const float* s) {
  if (interleaved) rope_row<Rope::INTERLEAVED>(x, y, heads, head_dim, pairs, c, s);
  else rope_row<Rope::HALVES>(x, y, heads, head_dim, pairs, c, s);
}

// Every worker adds to a counter between barriers; the last one checks that all arrived.
EXPORT int barrier_rounds(int threads, int rounds) {
  int counter = 0, errors = 0;
  int failed = harness::on_pool(threads, [&](const Worker& worker) {
    for (int i = 0; i < rounds; ++i) {
      __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
      worker.sync();
      if (__atomic_load_n(&counter, __ATOMIC_RELAXED) != (i + 1) * worker.count)
        __atomic_add_fetch(&errors, 1, __ATOMIC_RELAXED);
      worker.sync();
    }
  });
  return failed ? -1 : errors;
}
