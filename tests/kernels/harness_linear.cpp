#include "harness.h"
#include "linear.h"
#include "simd_math.h"

using namespace llmc;

// Calls body(format) for the format with this number.
template <class Body> static void with_format(int format, Body body) {
  switch (format) {
    case 0: return body(F32{});
    case 1: return body(Bf16{});
    case 2: return body(Int8<0>{});
    case 3: return body(Int8<32>{});
    case 4: return body(Int8<128>{});
  }
}

EXPORT int64_t row_bytes(int format, int64_t k) {
  int64_t n = 0;
  with_format(format, [&](auto f) { n = decltype(f)::row_bytes(k); });
  return n;
}
EXPORT int64_t panel_bytes(int format, int64_t k) {
  int64_t n = 0;
  with_format(format, [&](auto f) { n = decltype(f)::panel_bytes(k); });
  return n;
}
EXPORT void quantize(int format, const float* x, int rows, int k, uint8_t* out) {
  FlushDenormals flush;
  with_format(format, [&](auto f) {
    for (int r = 0; r < rows; ++r) quantize_row<decltype(f)>(x + (int64_t)r * k, k, out + r * decltype(f)::row_bytes(k));
  });
}
EXPORT void embed(int format, const void* panels, const void* scales, int64_t n, int k, float* out) {
  with_format(format, [&](auto f) { embed_row<decltype(f)>({panels, scales, nullptr}, n, k, out); });
}
EXPORT int run_linear(int format, const void* panels, const void* scales, int64_t n, int64_t k, const void* operand,
                      int64_t rows, const float* bias, float* out, int threads) {
  const Weights w{panels, scales, nullptr, n, k};
  const StoreRows store_rows{out, n, bias};
  return harness::on_pool(threads, [&](const Worker& worker) {
    with_format(format, [&](auto f) { linear<decltype(f)>(w, operand, rows, store_rows, worker); });
  });
}

// silu(gate) * up, straight into rows of a bf16 operand.
struct GatedBf16 {
  uint8_t* out;
  int64_t row_bytes;
  inline void operator()(int row, int col, int, f32x16 gate, f32x16 up) const {
    store_bf16((uint16_t*)(out + row * row_bytes) + col / 2, silu(gate) * up);
  }
};
EXPORT int run_gated(int format, const void* panels, const void* scales, int64_t n, int64_t k, const void* operand,
                     int64_t rows, void* out, int threads) {
  const Weights w{panels, scales, nullptr, n, k};
  const GatedBf16 gated{(uint8_t*)out, Bf16::row_bytes(n / 2)};
  return harness::on_pool(threads, [&](const Worker& worker) {
    with_format(format, [&](auto f) { linear<decltype(f)>(w, operand, rows, gated, worker); });
  });
}
