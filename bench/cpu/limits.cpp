// What this machine can do at most: reading memory, and the widest multiply-accumulate of each format (limits.py).
#include "linear.h"
#include "timed.h"

using namespace llmc;

// Each thread reads its share of the bytes, in order, prefetching as far ahead as the linears do. Seconds per round.
EXPORT int time_read(const uint8_t* data, int64_t bytes, int threads, int rounds, double* times) {
  static volatile int32_t sink;
  return timed(threads, rounds, times, [&](int, const Worker& worker) {
    int64_t begin, end;
    worker.share(bytes / 512, &begin, &end);
    i32x16 s[8];
    for (auto& v : s) v = splat_i32(0);
    for (const uint8_t *p = data + begin * 512, *last = data + end * 512; p < last; p += 512)
      LLMC_UNROLL for (int j = 0; j < 8; ++j) {
        prefetch(p + 64 * j + LLMC_PREFETCH_BYTES);
        s[j] = add_i32(s[j], load_i32(p + 64 * j));
      }
    int32_t total = 0;
    for (auto& v : s) total += reduce_add_i32(v);
    sink = total;
  });
}

// Multiply-accumulates from registers alone; kind: 0 fma, 1 vdpbf16ps, 2 vpdpbusd, 3 AMX bf16, 4 AMX int8. Returns
// operations of one round and thread (2 per multiply-accumulate), 0 where the target has none.
EXPORT double time_peak(int kind, int threads, int rounds, double* times) {
  constexpr int LOOPS = 20000, CHAINS = 12;  // short rounds: some of them undisturbed on a busy machine
  double operations = 0;
#if defined(LLMC_AVX512)
  auto chains = [&](auto step, double each) {
    operations = each * LOOPS * CHAINS;
    timed(threads, rounds, times, [&](int, const Worker&) {
      vi acc[CHAINS];
      for (auto& a : acc) a = _mm512_setzero_si512();
      for (int i = 0; i < LOOPS; ++i)
        LLMC_UNROLL for (int c = 0; c < CHAINS; ++c) step(acc[c]);
      for (auto& a : acc) asm volatile("" ::"v"(a));
    });
  };
  if (kind == 0) chains([](vi& a) { asm volatile("vfmadd231ps %%zmm31, %%zmm31, %0" : "+v"(a)); }, 32);
#if defined(LLMC_BF16)
  if (kind == 1) chains([](vi& a) { asm volatile("vdpbf16ps %%zmm31, %%zmm31, %0" : "+v"(a)); }, 64);
#endif
#if defined(LLMC_VNNI)
  if (kind == 2) chains([](vi& a) { asm volatile("vpdpbusd %%zmm31, %%zmm31, %0" : "+v"(a)); }, 128);
#endif
#if defined(LLMC_AMX)
  if (kind >= 3) {
    operations = (kind == 3 ? 16384.0 : 32768.0) * 4 * LOOPS;
    timed(threads, rounds, times, [&](int, const Worker&) {
      AmxShape shape;
      shape.set(16, 16);
      if (kind == 3)
        for (int i = 0; i < LOOPS; ++i) {
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      else
        for (int i = 0; i < LOOPS; ++i) {
          _tile_dpbsud(0, 4, 6);
          _tile_dpbsud(1, 4, 7);
          _tile_dpbsud(2, 5, 6);
          _tile_dpbsud(3, 5, 7);
        }
      shape.release();
    });
  }
#endif
#endif
  (void)kind, (void)threads, (void)rounds, (void)times;
  return operations;
}
