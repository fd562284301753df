// Marks around the kernels of a generated step (marked_engine.py puts them there): when each thread finished each of
// them, and when it came through the barrier after it. Holds the last step of each thread.
#pragma once
#include <stdint.h>
#include <time.h>

#include "linear.h"

namespace llmc {

constexpr int MARKED_THREADS = 64;

struct alignas(64) MarkLane {
  int64_t last;
  int32_t busy[STEP_MARKS];    // nanoseconds in the kernel
  int32_t waited[STEP_MARKS];  // nanoseconds in the barrier
};
inline MarkLane mark_lanes[MARKED_THREADS];

inline clockid_t mark_clock = CLOCK_MONOTONIC;

inline int64_t mark_now() {
  timespec t;
  clock_gettime(mark_clock, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}

inline void mark(const Worker& w, int32_t* slot) {
  int64_t now = mark_now();
  if (slot) *slot = (int32_t)(now - mark_lanes[w.id].last);
  mark_lanes[w.id].last = now;
}
inline void mark_begin(const Worker& w) { mark(w, nullptr); }
inline void mark_busy(const Worker& w, int i) { mark(w, &mark_lanes[w.id].busy[i]); }
inline void mark_waited(const Worker& w, int i) { mark(w, &mark_lanes[w.id].waited[i]); }

struct PlainRead {
  const uint8_t* data;
  int64_t bytes;
};

// Each thread reads its share, in order, and prefetches as far ahead as the linears do.
inline void plain_read(void* args, const Worker& w) {
  const PlainRead& read = *(const PlainRead*)args;
  int64_t at, end;
  w.share(read.bytes / 512, &at, &end);
  i32x16 sums[8];
  for (i32x16& s : sums) s = splat_i32(0);
  for (; at < end; ++at)
    LLMC_UNROLL for (int j = 0; j < 8; ++j) {
      const uint8_t* p = read.data + at * 512 + 64 * j;
      prefetch(p + LLMC_PREFETCH_BYTES);
      sums[j] = add_i32(sums[j], load_i32(p));
    }
  int32_t total = 0;
  for (const i32x16& s : sums) total += reduce_add_i32(s);
  asm volatile("" ::"r"(total));
}

}  // namespace llmc

// Nanoseconds of each of so many reads of the bytes, by so many threads; all zero where they cannot be started.
extern "C" __attribute__((visibility("default"))) void llmc_mark_read(const uint8_t* data, int64_t bytes, int threads,
                                                                      int rounds, int64_t* nanoseconds) {
  llmc::Pool* pool = llmc::pool_create(threads);
  if (!pool) return;
  llmc::PlainRead read{data, bytes};
  for (int i = 0; i < rounds; ++i) {
    timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    llmc::pool_run(pool, llmc::plain_read, &read);
    clock_gettime(CLOCK_MONOTONIC, &to);
    nanoseconds[i] = (to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec);
  }
  llmc::pool_destroy(pool);
}

// Whether marks tell the thread's own CPU time instead of the time of day.
extern "C" __attribute__((visibility("default"))) void llmc_mark_cpu_time(int on) {
  llmc::mark_clock = on ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
}

// out: [threads][2][STEP_MARKS], busy then waited.
extern "C" __attribute__((visibility("default"))) void llmc_marks(int threads, int32_t* out) {
  for (int t = 0; t < threads; ++t)
    for (int i = 0; i < STEP_MARKS; ++i) {
      out[(2 * t + 0) * STEP_MARKS + i] = llmc::mark_lanes[t].busy[i];
      out[(2 * t + 1) * STEP_MARKS + i] = llmc::mark_lanes[t].waited[i];
    }
}
