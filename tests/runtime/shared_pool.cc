// Two engines with steps of their own on one pool of threads: prints what each has computed.
#include "threads.h"

#include <stdio.h>

// An engine with its own step and memory, on threads that it was given.
struct Engine {
  llmc::Pool* pool;
  int64_t values[1000], sums[8], total;
};

static void add(void* args, const llmc::Worker& w) {
  Engine& e = *(Engine*)args;
  int64_t begin, end;
  w.share(1000, &begin, &end);
  for (int64_t i = begin; i < end; ++i) e.values[i] += i;
  w.sync();
  w.share(8, &begin, &end);
  for (int64_t part = begin; part < end; ++part) {
    e.sums[part] = 0;
    for (int64_t i = part * 125; i < part * 125 + 125; ++i) e.sums[part] += e.values[i];
  }
  w.sync();
  if (w.id == 0) {
    e.total = 0;
    for (int64_t sum : e.sums) e.total += sum;
  }
}

static void count(void* args, const llmc::Worker& w) {
  Engine& e = *(Engine*)args;
  e.values[w.id]++;
  w.sync();
  if (w.id == 0) e.total = e.values[0] * 100 + e.values[1] * 10 + e.values[2];
}

int main() {
  llmc::Pool* pool = llmc::pool_create(3);
  static Engine sums{pool}, turns{pool};
  for (int i = 0; i < 9; ++i) {
    llmc::pool_run(sums.pool, add, &sums);
    llmc::pool_run(turns.pool, count, &turns);
  }
  llmc::pool_destroy(pool);
  printf("%ld %ld\n", (long)sums.total, (long)turns.total);
}
