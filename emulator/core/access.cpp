// access.cpp - plain and atomic memory accesses: bounds, liveness, alignment, races; the grid's own ordering.
#include <dlfcn.h>

#include <cstring>

#include "primitives.h"

namespace emu {

namespace {

[[noreturn]] void fail_access(const AccessProblem& problem, Where where) {
  const bool misaligned = problem.kind == AccessProblem::Kind::misaligned;
  fail(misaligned ? Fault::misaligned : Fault::illegal_address, where,
       (misaligned ? "misaligned address: " : "illegal memory access: ") + problem.text);
}

bool is_shared(const Block& b, const void* p) {
  return size_t(static_cast<const u8*>(p) - b.smem) < kMaxSmem;
}

void check(Block& b, const void* p, size_t bytes, size_t alignment, AccessInfo info) {
  if (is_shared(b, p)) {
    const u32 offset = u32(static_cast<const u8*>(p) - b.smem);
    if (offset % alignment)
      fail_access({AccessProblem::Kind::misaligned, text("%zu-byte access to shared memory +0x%x", bytes, offset)},
                  info.where);
    smem_at(b, offset, bytes, info.where);
  } else {
    check_global(b, p, bytes, alignment, info.where);
  }
  if (b.checked()) race_access(b, p, bytes, info);
}

// Atomics and their fences after the C++ fence model: a relaxed operation publishes what the thread's last
// __threadfence saw, and what it reads takes effect at the thread's next one (PTX ISA, memory consistency model).
void order_atomic(Fiber& f, const void* p) {
  if (auto seen = sync_read(p)) f.relaxed.push_back(seen);
  if (f.fence_release) sync_release(p, f.fence_release);
}

}  // namespace

void check_global_slowly(Block& b, const void* p, size_t bytes, size_t alignment, Where where) {
  const AccessProblem problem = Memory::instance().check(p, bytes, alignment, b.launch->device);
  if (problem.kind != AccessProblem::Kind::none) fail_access(problem, where);
}

void access(const void* p, u32 bytes, Access kind, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  if (!b.checked() && !is_shared(b, p)) return check_global(b, p, bytes, bytes, at);
  check(b, p, bytes, bytes, {u8(kind == Access::write ? kWrite : 0), where_of(at), f.id});
}

void hook(const void* p, size_t bytes, Access kind, bool aligned, const void* pc) {
  Fiber& f = me();
  Block& b = *f.block;
  const size_t stack_offset = size_t(static_cast<const u8*>(p) - b.stacks);
  if (stack_offset < kMaxThreads * kStackBytes) {
    for (const InFlight& regs : f.in_flight)
      if (static_cast<const u8*>(p) < regs.end && static_cast<const u8*>(p) + bytes > regs.begin)
        fail(Fault::race, where_of(pc), "accumulator registers touched while an asynchronous wgmma owns them "
                                        "(wgmma_wait is missing or waits for too few groups)");
    return;
  }
  if (!Memory::instance().in_range(p) && !is_shared(b, p)) {
    Dl_info info;
    if (kind == Access::read && dladdr(p, &info)) return;  // a constant of the twin
  }
  check(b, p, bytes, aligned && bytes <= 16 ? bytes : 1, {u8(kind == Access::write ? kWrite : 0), where_of(pc), f.id});
}

u32 smem_offset(const void* p, Site at) {
  Block& b = *me().block;
  if (!is_shared(b, p)) misuse(at, "smem_addr of a pointer that is not into dynamic shared memory");
  return u32(static_cast<const u8*>(p) - b.smem);
}

u32 atomic_u32(u32* p, u32 value, Rmw op, Site at) {
  Fiber& f = me();
  check(*f.block, p, 4, 4, {kWrite | kAtomic, where_of(at), f.id});
  if (f.block->checked()) order_atomic(f, p);
  switch (op) {
    case Rmw::add: return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
    case Rmw::exchange: return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);
    case Rmw::max: break;
  }
  u32 seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(p, &seen, seen > value ? seen : value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  return seen;
}

float atomic_add_f32(float* p, float value, Site at) {
  Fiber& f = me();
  check(*f.block, p, 4, 4, {kWrite | kAtomic, where_of(at), f.id});
  if (f.block->checked()) order_atomic(f, p);
  auto* bits = reinterpret_cast<u32*>(p);
  u32 seen = __atomic_load_n(bits, __ATOMIC_SEQ_CST), wanted;
  float old;
  do {
    std::memcpy(&old, &seen, 4);
    const float sum = old + value;
    std::memcpy(&wanted, &sum, 4);
  } while (!__atomic_compare_exchange_n(bits, &seen, wanted, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return old;
}

u32 load_acquire(const u32* p, Site at) {
  Fiber& f = me();
  check(*f.block, p, 4, 4, {kAtomic, where_of(at), f.id});
  if (f.block->checked()) acquire(*f.block, f.id, sync_read(p));
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

void store_release(u32* p, u32 value, Site at) {
  Fiber& f = me();
  check(*f.block, p, 4, 4, {kWrite | kAtomic, where_of(at), f.id});
  if (f.block->checked()) {
    sync_release(p, release_knowledge(*f.block, f.id));
    clock_tick(*f.block, f.id);
  }
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

void threadfence(Site) {
  Fiber& f = me();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!f.block->checked()) return;
  for (auto& knowledge : f.relaxed) acquire(*f.block, f.id, knowledge);
  f.relaxed.clear();
  f.fence_release = release_knowledge(*f.block, f.id);
  clock_tick(*f.block, f.id);
}

void grid_wait(Site) {
  Fiber& f = me();
  Block& b = *f.block;
  b.waited_for_grid = true;
  if (!b.checked()) return;
  clock_tick(b, f.id);
  b.race.grid_waits.emplace_back(f.id, b.race.row(f.id)[f.id]);
}

// The dependents run after this grid here; that they may start early is the race detector's business.
void grid_launch_dependents(Site) {}

}  // namespace emu
