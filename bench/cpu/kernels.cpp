// Timed loops for kernels.py: linear over many weights in turn (as a model's layers come), attention, and what the
// machine can do at most: reading memory of the same size, and the widest multiply-accumulate of each format.
#include <time.h>

#include "attention.h"
#include "linear.h"
#include "rows.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace llmc;

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// times[i] = seconds of body(i, worker) between barriers.
template <class Body> static int timed(int threads, int rounds, double* times, Body body) {
  auto all = [&](const Worker& worker) {
    for (int i = 0; i < rounds; ++i) {
      worker.sync();
      double begin = seconds();
      body(i, worker);
      worker.sync();
      if (worker.id == 0) times[i] = seconds() - begin;
    }
  };
  Pool* pool = pool_create(threads);
  if (!pool) return 1;
  pool_run(pool, [](void* args, const Worker& worker) { (*(decltype(all)*)args)(worker); }, &all);
  pool_destroy(pool);
  return 0;
}

template <class Body> static void with_format(int format, Body body) {
  switch (format) {
    case 0: return body(F32{});
    case 1: return body(Bf16{});
    case 2: return body(Int8<0>{});
    case 3: return body(Int8<128>{});
  }
}

// One round runs the linear over `copies` weights one after the other, `stride` bytes apart.
EXPORT int time_linear(int format, const uint8_t* panels, int64_t stride, int copies, const float* scales, int64_t n,
                       int64_t k, const void* operand, int64_t rows, float* out, int threads, int rounds,
                       double* times) {
  int failed = 0;
  with_format(format, [&](auto f) {
    failed = timed(threads, rounds, times, [&](int, const Worker& worker) {
      for (int c = 0; c < copies; ++c) {
        linear<decltype(f)>(Weights{panels + c * stride, scales, n, k}, operand, rows, StoreRows{out, n, nullptr}, worker);
        worker.sync();
      }
    });
  });
  return failed;
}

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
  constexpr int LOOPS = 200000, CHAINS = 12;
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

// One sequence of `rows` tokens that ends at position length - 1, over a pool of shuffled blocks.
EXPORT int time_attention(int bf16, int q_heads, int kv_heads, int d, int64_t length, int rows, const float* q,
                          uint8_t* kv, const int32_t* table, int64_t block_bytes, float* out, int threads, int rounds,
                          double* times) {
  int32_t* positions = (int32_t*)malloc(4 * rows);
  for (int r = 0; r < rows; ++r) positions[r] = (int32_t)(length - rows + r);
  const int32_t starts[2] = {0, rows};
  const KvPool pool{kv, block_bytes, table, (length + BLOCK - 1) / BLOCK};
  const AttentionShape shape{q_heads, 0.125f, 0.0f, 0, nullptr, nullptr};
  const AttentionBatch batch{1, starts, positions};
  void* scratch = malloc(attention_scratch_bytes(threads, q_heads, kv_heads, d, length));
  auto run = [&](auto format) {
    using Kv = decltype(format);
    const KvSlot<Kv> slot{0, kv_heads, d, d};
    return timed(threads, rounds, times, [&](int, const Worker& worker) {
      attention<Kv>(shape, batch, pool, slot, q, StoreHeads{out, (int64_t)q_heads * d, d}, scratch, worker);
    });
  };
  int failed = bf16 ? run(KvBf16{}) : run(KvF32{});
  free(scratch);
  free(positions);
  return failed;
}
