// A program that runs the kernels of the harness on numbers of its own and prints a hash of each result, so that targets
// whose libraries this machine cannot load are compared with one that it can, under an emulator of the CPU.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "harness.h"
#include "operand.h"
#include "quant.h"

extern "C" {
int64_t row_bytes(int format, int64_t k);
int64_t panel_bytes(int format, int64_t k);
void quantize(int format, const float* x, int rows, int k, uint8_t* out);
int64_t codes_row_bytes(int format, int64_t k);
int64_t codes_panel_bytes(int format, int64_t k);
void codes_quantize(int format, const float* x, int rows, int k, uint8_t* out);
int codes_linear(int format, const llmc::Table* table, int64_t n, int64_t k, const void* operand, int64_t rows, float* out,
                 int threads);
int run_linear(int format, const void* panels, const void* scales, int64_t n, int64_t k, const void* operand,
               int64_t rows, const float* bias, float* out, int threads);
void simd_to_i32(const float* x, int32_t* y, int n);
void simd_bf16(const float* x, uint16_t* y, int n);
void simd_store_s8(const int32_t* x, int8_t* y, int n);
void simd_dot_i8(const uint8_t* u, const int8_t* s, int32_t* acc, int n);
float simd_reduce_add(const float* x);
float simd_reduce_max(const float* x);
float row_sum(const float* x, int n);
void row_rms_norm(const float* x, const float* w, float eps, float* y, int n);
void row_layer_norm(const float* x, const float* w, const float* b, float eps, float* y, int n);
void row_softmax(const float* x, float* y, int n);
void row_rope_angles(int position, const float* inv_freq, float scale, float* c, float* s, int pairs);
int barrier_rounds(int threads, int rounds);
void philox_lanes(uint64_t key, const uint32_t* counters, uint32_t* out);
int run_sample(const LlmcSampling* sampling, const float* logits, int rows, int64_t stride, int valid, int32_t* tokens,
               float* logprob, int32_t* top_ids, float* top_logprobs, int threads);
}

static uint64_t state = 1;
static uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 32);
}
static float random_float(float scale) { return ((float)(int32_t)random_bits() / 2147483648.0f) * scale; }

template <class T> struct Array {
  size_t size;
  T* data;
  explicit Array(size_t n) : size(n), data((T*)aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64)) {
    memset((void*)data, 0, (n * sizeof(T) + 127) / 64 * 64);
  }
  ~Array() { free(data); }
};
static void fill(Array<float>& a, float scale) {
  for (size_t i = 0; i < a.size; ++i) a.data[i] = random_float(scale);
}

// FNV-1a; every NaN counts as the same one, because signs of those that operations make differ between CPUs.
static uint64_t hash_bytes(const void* data, size_t bytes, uint64_t h = 14695981039346656037u) {
  for (size_t i = 0; i < bytes; ++i) h = (h ^ ((const uint8_t*)data)[i]) * 1099511628211u;
  return h;
}
static uint64_t hash_floats(const float* data, size_t n) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits = 0x7fc00000u;
    if (data[i] == data[i]) memcpy(&bits, data + i, 4);
    h = hash_bytes(&bits, 4, h);
  }
  return h;
}
static void report(const char* name, uint64_t h) { printf("%s %016llx\n", name, (unsigned long long)h); }

static void conversions() {
  Array<float> x(4096);
  for (size_t i = 0; i < x.size; ++i) {
    uint32_t bits = random_bits();  // any exponent, NaNs and infinities among them
    memcpy(x.data + i, &bits, 4);
    if (i % 4 == 1) x.data[i] = random_float(200.0f);
    if (i % 4 == 2) x.data[i] = (float)((int)(random_bits() % 512) - 256) / 2;  // ties
  }
  Array<int32_t> whole(x.size);
  simd_to_i32(x.data, whole.data, (int)x.size);
  report("to_i32", hash_bytes(whole.data, 4 * x.size));
  Array<int8_t> bytes(x.size);
  simd_store_s8(whole.data, bytes.data, (int)x.size);
  report("store_s8", hash_bytes(bytes.data, x.size));
  Array<uint16_t> halves(x.size);
  simd_bf16(x.data, halves.data, (int)x.size);
  report("bf16", hash_bytes(halves.data, 2 * x.size));
  Array<uint8_t> u(64 * 64);
  Array<int8_t> s(64 * 64);
  Array<int32_t> acc(16 * 64);
  for (size_t i = 0; i < u.size; ++i) {
    u.data[i] = i % 3 ? (uint8_t)random_bits() : 255;
    s.data[i] = i % 5 ? (int8_t)random_bits() : i % 2 ? -128 : 127;
  }
  simd_dot_i8(u.data, s.data, acc.data, 64);
  report("dot_i8", hash_bytes(acc.data, 4 * acc.size));
  Array<uint32_t> counters(64), drawn(64);
  for (int i = 0; i < 64; ++i) counters.data[i] = random_bits();
  philox_lanes(0x0123456789abcdefu, counters.data, drawn.data);
  report("philox", hash_bytes(drawn.data, 256));
}

#define UNARY(name) extern "C" void simd_##name(const float*, float*, int);
#define EACH_UNARY(X) X(exp) X(log) X(tanh) X(erf) X(sin) X(cos) X(sigmoid) X(silu) X(gelu_erf) X(gelu_tanh) X(softplus) \
  X(sqrt) X(rsqrt) X(round) X(floor) X(ceil) X(trunc) X(abs) X(neg) X(relu)
EACH_UNARY(UNARY)

static void functions() {
  Array<float> x(2000), y(2000);
  fill(x, 30.0f);
  for (int i = 0; i < 100; ++i) x.data[i] = i % 2 ? INFINITY : i % 3 ? -INFINITY : NAN;
  for (int i = 100; i < 400; ++i) x.data[i] = random_float(1e-3f);
#define RUN(name) simd_##name(x.data, y.data, (int)x.size); report(#name, hash_floats(y.data, y.size));
  EACH_UNARY(RUN)
  const int widths[] = {1, 15, 16, 100, 577};
  for (int n : widths) {
    Array<float> a(n), w(n), b(n), out(n);
    fill(a, 3.0f), fill(w, 1.0f), fill(b, 1.0f);
    row_rms_norm(a.data, w.data, 1e-6f, out.data, n);
    report("rms_norm", hash_floats(out.data, n));
    row_layer_norm(a.data, w.data, b.data, 1e-5f, out.data, n);
    report("layer_norm", hash_floats(out.data, n));
    row_softmax(a.data, out.data, n);
    report("softmax", hash_floats(out.data, n));
    const float sums[3] = {row_sum(a.data, n), simd_reduce_add(x.data + 400), simd_reduce_max(x.data + 400)};
    report("sums", hash_floats(sums, 3));
  }
  Array<float> inv_freq(32), c(32), s(32);
  for (int i = 0; i < 32; ++i) inv_freq.data[i] = powf(10000.0f, -(float)i / 32);
  const int places[] = {0, 1, 17, 8191, 131071};
  for (int position : places) {
    row_rope_angles(position, inv_freq.data, 1.0f, c.data, s.data, 32);
    report("rope", hash_floats(c.data, 32) ^ hash_floats(s.data, 32));
  }
}

static void linears() {
  const int widths[] = {1, 63, 64, 200}, counts[] = {1, 2, 3, 19};
  for (int format = 0; format < 5; ++format)
    for (int k : widths)
      for (int rows : counts) {
        const int n = 70;
        Array<uint8_t> panels(3 * panel_bytes(format, k)), operand(rows * row_bytes(format, k));
        Array<float> x(rows * k), scales(96), bias(n), out(rows * n);
        fill(x, 1.0f), fill(scales, 0.01f), fill(bias, 1.0f);
        for (size_t i = 0; i < panels.size; ++i) panels.data[i] = (uint8_t)random_bits();
        if (format == 0)
          for (size_t i = 0; i < panels.size / 4; ++i) ((float*)panels.data)[i] = random_float(1.0f);
        if (format == 1)
          for (size_t i = 0; i < panels.size / 2; ++i) {
            const float value = random_float(1.0f);
            memcpy(panels.data + 2 * i, (const char*)&value + 2, 2);
          }
        quantize(format, x.data, rows, k, operand.data);
        report("operand", hash_bytes(operand.data, format ? operand.size : 0));
        run_linear(format, panels.data, format > 1 ? scales.data : nullptr, n, k, operand.data, rows, bias.data,
                   out.data, 2);
        char name[32];
        snprintf(name, sizeof name, "linear-%d-%d-%d", format, k, rows);
        report(name, hash_floats(out.data, out.size));
      }
}

// Formats with codes: bytes that are no NaN as fp8, and scales and offsets that are sane as any of their types.
static void coded_linears() {
  const int widths[] = {1, 63, 200}, counts[] = {1, 3, 19}, n = 70;
  for (int format = 0; codes_row_bytes(format, 1); ++format)
    for (int k : widths)
      for (int rows : counts) {
        Array<uint8_t> panels(3 * codes_panel_bytes(format, k)), operand(rows * codes_row_bytes(format, k));
        Array<uint16_t> scales(2 * 96 * 32), offsets(2 * 96 * 32);
        Array<float> x(rows * k), out(rows * n);
        fill(x, 1.0f);
        for (size_t i = 0; i < panels.size; ++i) {
          panels.data[i] = (uint8_t)random_bits();
          if ((panels.data[i] & 127) == 127) panels.data[i] = 0;
        }
        for (size_t i = 0; i < scales.size; ++i) {
          scales.data[i] = (uint16_t)(0x3800 + random_bits() % 0x400);
          offsets.data[i] = (uint16_t)(0x3800 + random_bits() % 0x400);
        }
        codes_quantize(format, x.data, rows, k, operand.data);
        const llmc::Table table{panels.data, scales.data, offsets.data};
        codes_linear(format, &table, n, k, operand.data, rows, out.data, 2);
        char name[32];
        snprintf(name, sizeof name, "codes-%d-%d-%d", format, k, rows);
        report(name, hash_floats(out.data, out.size));
      }
}

static void samples() {
  const int vocab = 1000, rows = 8;
  Array<float> logits(rows * vocab), logprob(rows), top(rows * LLMC_MAX_LOGPROBS);
  Array<int32_t> tokens(rows), ids(rows * LLMC_MAX_LOGPROBS), history(20);
  Array<LlmcSampling> asks(rows);
  fill(logits, 8.0f);
  for (int i = 0; i < 20; ++i) history.data[i] = (int32_t)(random_bits() % vocab);
  for (int r = 0; r < rows; ++r) {
    const float temperature = r % 4 * 0.6f;
    asks.data[r] = {temperature, r % 3 ? 0.9f : 1.0f, r % 5 ? 0.0f : 0.05f, 1.1f, 0.2f, 0.1f, r % 2 ? 40 : 0, 5, 7,
                    (uint32_t)r, (uint32_t)r + 20, history.data, 20, 10, nullptr, nullptr, 0, 0};
  }
  run_sample(asks.data, logits.data, rows, vocab, vocab - 3, tokens.data, logprob.data, ids.data, top.data, 2);
  report("tokens", hash_bytes(tokens.data, 4 * rows));
  report("logprobs", hash_floats(logprob.data, rows) ^ hash_floats(top.data, 5));
}

int main() {
  conversions();
  functions();
  linears();
  coded_linears();
  samples();
  report("barriers", (uint64_t)barrier_rounds(3, 200));
}
