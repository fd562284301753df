#include "harness.h"
#include "harness_codes.h"
#include "linear.h"

using namespace llmc;

template <class Body> static void with_codes(int format, Body body) {
  switch (format) {
#define FORMAT(id, ...) \
  case id: return body(__VA_ARGS__{});
    LLMC_TESTED_FORMATS
  }
}

EXPORT int64_t codes_row_bytes(int format, int64_t k) {
  int64_t n = 0;
  with_codes(format, [&](auto f) { n = decltype(f)::row_bytes(k); });
  return n;
}
EXPORT int64_t codes_panel_bytes(int format, int64_t k) {
  int64_t n = 0;
  with_codes(format, [&](auto f) { n = decltype(f)::panel_bytes(k); });
  return n;
}
EXPORT void codes_quantize(int format, const float* x, int rows, int k, uint8_t* out) {
  FlushDenormals flush;
  with_codes(format, [&](auto f) {
    using O = typename decltype(f)::Operand;
    for (int r = 0; r < rows; ++r) quantize_row<O>(x + (int64_t)r * k, k, out + r * O::row_bytes(k));
  });
}
EXPORT void codes_embed(int format, const Table* table, int64_t n, int k, float* out) {
  with_codes(format, [&](auto f) { embed_row<decltype(f)>(*table, n, k, out); });
}
EXPORT int codes_linear(int format, const Table* table, int64_t n, int64_t k, const void* operand, int64_t rows,
                        float* out, int threads) {
  const Weights w{table->panels, table->scales, table->offsets, n, k};
  const StoreRows store_rows{out, n, nullptr};
  return harness::on_pool(threads, [&](const Worker& worker) {
    with_codes(format, [&](auto f) { linear<decltype(f)>(w, operand, rows, store_rows, worker); });
  });
}
