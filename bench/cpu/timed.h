// Times a body that all threads of a pool run together, for kernels.cpp and limits.cpp.
#pragma once
#include <time.h>

#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace llmc {

inline double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// times[i] = seconds of body(i, worker) between barriers.
template <class Body> int timed(int threads, int rounds, double* times, Body body) {
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

}  // namespace llmc
