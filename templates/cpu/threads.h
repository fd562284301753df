// A persistent pool of threads that all walk the same step function, with a barrier between launches.
//
//   static void step(void* args, const Worker& w) { kernel_a(..., w); w.sync(); kernel_b(..., w); w.sync(); }
//   pool_run(pool, step, args);     // the caller is worker 0; returns when every worker is through
//
// A kernel is a plain function that every worker calls with its Worker; it takes the share of the work that its
// (id, count) says. Shares never change results. A barrier spins a little, then offers its core to whoever wants it,
// perhaps the thread that it waits for, and at last sleeps: a machine with fewer free cores than threads does not
// collapse. Where there are as many threads as CPUs that may be used, each thread that is started keeps to one of them:
// the kernel may put two on one CPU after another process has run for a moment, and leave another CPU idle for
// milliseconds, while all wait for one. While a step runs, each worker has denormals flushed to zero
// (results and inputs): canonical bf16 arithmetic is defined so (linear.h), and no input makes a kernel slow.
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simd.h"

#if defined(LLMC_AMX)
#include <immintrin.h>
#endif

namespace llmc {

constexpr int MAX_THREADS = 1024;  // as runtime/cpu/limits.py says
constexpr int SPIN_LIMIT = 200;     // pauses before a waiter offers its core to others: some 5 us
constexpr int YIELD_LIMIT = 2000;  // offers before it sleeps: about 1 ms, as long as the next step is mostly away

LLMC_INLINE void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield is no pause on most cores
#endif
}

// Flushes denormals while it lives. Saves and restores the calling thread's own mode.
struct FlushDenormals {
#if defined(__x86_64__)
  uint32_t saved = __builtin_ia32_stmxcsr();
  FlushDenormals() { __builtin_ia32_ldmxcsr(saved | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved); }
#elif defined(__aarch64__)
  uint64_t saved;  // bit 24 of FPCR flushes inputs and results
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved));
    asm volatile("msr fpcr, %0" ::"r"(saved | 1u << 24));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved)); }
#else
  FlushDenormals() {}
#endif
};

struct alignas(64) Event {  // a counter that threads wait on; sleepers tell the waker whether a wake call is needed
  uint32_t value;
  uint32_t sleepers;
};

LLMC_INLINE long futex(uint32_t* word, int op, uint32_t value) {
  return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

LLMC_INLINE void event_wait_change(Event* e, uint32_t old) {
  for (int i = 0; i < SPIN_LIMIT; ++i) {
    if (__atomic_load_n(&e->value, __ATOMIC_ACQUIRE) != old) return;
    cpu_pause();
  }
  for (int i = 0; i < YIELD_LIMIT; ++i) {
    if (__atomic_load_n(&e->value, __ATOMIC_ACQUIRE) != old) return;
    syscall(SYS_sched_yield);
  }
  __atomic_add_fetch(&e->sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&e->value, __ATOMIC_SEQ_CST) == old) futex(&e->value, FUTEX_WAIT, old);
  __atomic_sub_fetch(&e->sleepers, 1, __ATOMIC_SEQ_CST);
}

LLMC_INLINE void event_advance(Event* e) {
  __atomic_add_fetch(&e->value, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&e->sleepers, __ATOMIC_SEQ_CST)) futex(&e->value, FUTEX_WAKE, INT32_MAX);
}

struct Pool;

struct Worker {
  Pool* pool;
  int id;     // 0 .. count-1
  int count;  // threads that share the work
  inline void sync() const;

  // This worker's part [begin, end) of n equal units, contiguous, sizes differing by at most one.
  inline void share(int64_t n, int64_t* begin, int64_t* end) const {
    *begin = n * id / count;
    *end = n * (id + 1) / count;
  }
  // Whether unit i is this worker's when units grow along i: dealt forth and back.
  inline bool dealt(int64_t i) const {
    int64_t r = i % (2 * count);
    return (r < count ? r : 2 * count - 1 - r) == id;
  }
};

using Step = void (*)(void* args, const Worker& worker);

struct Pool {
  alignas(64) uint32_t arrived;  // at the current barrier
  Event passed;                  // barriers passed
  Event started;                 // steps started
  Step step;
  void* args;
  int count;
  bool closing;
  pthread_t threads[MAX_THREADS];
  Worker workers[MAX_THREADS];
};

inline void Worker::sync() const {
  if (count == 1) return;
  uint32_t now = __atomic_load_n(&pool->passed.value, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)count) {
    __atomic_store_n(&pool->arrived, 0, __ATOMIC_RELAXED);
    event_advance(&pool->passed);
  } else {
    event_wait_change(&pool->passed, now);
  }
}

inline void run_worker(const Worker& worker) {
  FlushDenormals flush;
  worker.pool->step(worker.pool->args, worker);
  worker.sync();
}

#if defined(LLMC_AMX)
constexpr int ARCH_REQUEST_PERMISSION = 0x1023, XFEATURE_TILE_DATA = 18;
// The kernel gives tile registers to a process that asks, before its threads start.
inline bool allow_tiles() { return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, XFEATURE_TILE_DATA) == 0; }
#endif

// Of the calling thread, which is worker `id` of `count`.
inline void keep_to_cpu(int id, int count) {
  cpu_set_t usable, own;
  if (sched_getaffinity(0, sizeof usable, &usable) || CPU_COUNT(&usable) != count) return;
  int cpu = 0;
  for (int before = 0; !CPU_ISSET(cpu, &usable) || before++ < id;) ++cpu;
  CPU_ZERO(&own);
  CPU_SET(cpu, &own);
  sched_setaffinity(0, sizeof own, &own);  // refused: it stays as it is
}

inline void* worker_main(void* arg) {
  const Worker& worker = *(const Worker*)arg;
  keep_to_cpu(worker.id, worker.count);
  uint32_t seen = 0;
  for (;;) {
    event_wait_change(&worker.pool->started, seen++);
    if (worker.pool->closing) return nullptr;
    run_worker(worker);
  }
}

inline void pool_destroy(Pool* pool) {
  if (!pool) return;
  pool->closing = true;
  event_advance(&pool->started);
  for (int i = 1; i < pool->count; ++i) pthread_join(pool->threads[i], nullptr);
  free(pool);
}

// Starts num_threads - 1 threads. Null: no memory, no threads, or (AMX targets) no tile registers.
inline Pool* pool_create(int num_threads) {
  if (num_threads < 1 || num_threads > MAX_THREADS) return nullptr;
#if defined(LLMC_AMX)
  if (!allow_tiles()) return nullptr;
#endif
  Pool* pool = (Pool*)aligned_alloc(64, (sizeof(Pool) + 63) / 64 * 64);
  if (!pool) return nullptr;
  __builtin_memset(pool, 0, sizeof(Pool));
  for (int i = 0; i < num_threads; ++i) pool->workers[i] = Worker{pool, i, num_threads};
  for (pool->count = 1; pool->count < num_threads; ++pool->count) {
    int i = pool->count;
    if (pthread_create(&pool->threads[i], nullptr, worker_main, &pool->workers[i])) {
      pool_destroy(pool);
      return nullptr;
    }
  }
  return pool;
}

// A pool for one more engine, whose scratch is for so many threads. Null: it has others, or (AMX targets) tile registers
// are refused. Its threads may have been started by an engine that has no use for those.
inline Pool* pool_share(Pool* pool, int num_threads) {
#if defined(LLMC_AMX)
  if (!allow_tiles()) return nullptr;
#endif
  return pool->count == num_threads ? pool : nullptr;
}

inline void pool_run(Pool* pool, Step step, void* args) {
  pool->step = step;
  pool->args = args;
  if (pool->count > 1) event_advance(&pool->started);
  run_worker(pool->workers[0]);
}

}  // namespace llmc
