// Marks that step_profile.py puts around the kernels of a generated step: when each thread finished each of them, and
// when it came through the barrier after it. Holds the last step of each thread.
#pragma once
#include <stdint.h>
#include <time.h>

#include "threads.h"

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

}  // namespace llmc

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
