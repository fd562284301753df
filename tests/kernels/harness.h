// Kernels behind plain C functions, so that tests can call them by ctypes. One library per CPU target.
#pragma once
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace harness {

// Runs body(worker) once on every thread of a pool of its own.
template <class Body> inline int on_pool(int threads, Body body) {
  llmc::Pool* pool = llmc::pool_create(threads);
  if (!pool) return 1;
  llmc::pool_run(
      pool, [](void* args, const llmc::Worker& worker) { (*(Body*)args)(worker); }, &body);
  llmc::pool_destroy(pool);
  return 0;
}

}  // namespace harness
