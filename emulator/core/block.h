// block.h - one thread block being executed: a fiber per CUDA thread and the state its primitives share.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../include/llmc_emu/abi.h"
#include "copies.h"
#include "memory.h"
#include "order.h"
#include "race.h"
#include "report.h"
#include "wgmma_state.h"

namespace emu {

enum class Mode : u32 { forward, reverse, random };
struct Schedule { Mode mode = Mode::forward; u64 seed = 1; u32 workers = 0; };  // 0 workers: all cores

struct Block;

struct Fiber : ThreadView {
  void* stack_pointer = nullptr;
  Block* block = nullptr;
  Warpgroup* group = nullptr;  // null where the block's last threads are no full warpgroup
  u32 group_operations = 0;    // warpgroup-wide operations it has arrived at
  u32 warp = 0;
  bool done = false;
  const char* waiting_in = nullptr;  // what it is blocked in; null when it can run
  Site at{};
  CopyGroups<PendingCopy> copies;
  CopyGroups<PendingStore> stores;
  WgmmaProgress wgmma;
  std::vector<InFlight> in_flight;
  std::vector<u32> proxy_fences;           // own clock values at fence.proxy.async
  std::shared_ptr<Knowledge> fence_release;  // what the last __threadfence of this thread published
  std::vector<std::shared_ptr<Knowledge>> relaxed;  // read by relaxed atomics, not yet fenced
};

static_assert(sizeof(Fiber) <= kHeaderBytes);

struct Warp { u32 arrived = 0, mask = 0; const char* name = nullptr; Site at{}; void* args[32] = {}; };

struct Barrier {
  u32 arrived = 0, need = 0;
  std::vector<u32> waiters;
  u32 line_of_warp[kMaxThreads / 32] = {};  // where each warp arrived in this generation; 0: it has not
  Clock clock;
  Site at{};
};

constexpr u32 kNamedBarriers = 16;
constexpr size_t kMaxSmem = size_t{228} << 10;

// The threads that can run, each once: a ring, so that those of one warp can go before all others.
struct ReadyThreads {
  u32 threads[kMaxThreads];
  u32 head = 0, tail = 0;  // number i lies at i modulo kMaxThreads
  u32& at(u32 number) { return threads[number % kMaxThreads]; }
  u32 size() const { return tail - head; }
  bool empty() const { return head == tail; }
  void clear() { head = tail = 0; }
  void add(u32 thread) { at(tail++) = thread; }
  void add_first(u32 thread) { at(--head) = thread; }
  u32 take_first() { return at(head++); }
  u32 take(u32 index) {  // the last one takes its place
    const u32 thread = at(head + index);
    at(head + index) = at(--tail);
    return thread;
  }
};

struct LaunchInfo {
  const Op* op = nullptr;
  const KernelEntry* kernel = nullptr;
  void** params = nullptr;
  Dim3 grid, block;
  size_t smem_bytes = 0;
  u32 regs_per_thread = 0;  // 0: unknown
  u32 device = 0;
  bool checked = false;
  Schedule schedule;
};

struct Block {
  const LaunchInfo* launch = nullptr;
  Dim3 index;
  u32 n = 0, live = 0;
  u8* smem = nullptr;
  u8* stacks = nullptr;
  u32 guarded = 0;  // stacks 0..guarded-1 begin with a guard page (faults.cpp)
  Fiber* fibers[kMaxThreads] = {};
  Warp warps[kMaxThreads / 32];
  Barrier barriers[kNamedBarriers];
  Warpgroup warpgroups[kMaxThreads / 128];
  Mbarriers mbarriers;
  std::deque<PendingLoad> loads;
  std::map<u32, Layout> layouts;  // by shared offset
  ReadyThreads ready;
  u32 picks = 0;
  u64 rng = 1;
  u32 next_token = 1;
  u32 free_regs = 0;
  bool waited_for_grid = false;
  void* main_stack_pointer = nullptr;
  Failure failure;
  RaceState race;
  // Allocations found lately, by page. No two allocations share a page.
  struct Found { uintptr_t page = 0; const Allocation* allocation = nullptr; } found[64];

  Mode mode() const { return launch->schedule.mode; }
  bool checked() const { return launch->checked; }
  u64 random() { rng ^= rng << 13; rng ^= rng >> 7; return rng ^= rng << 17; }
  // Whether asynchronous work lands as soon as it is issued, or as late as is legal. Forward is late where mistakes are
  // looked for, and at once where results are wanted.
  bool lands_at_once() {
    switch (mode()) {
      case Mode::forward: return !checked();
      case Mode::reverse: return true;
      case Mode::random: break;
    }
    return random() & 1;
  }
};

inline Fiber& me() { return static_cast<Fiber&>(self()); }

// --- scheduling (fiber.cpp) -----------------------------------------------------------------------------
void run_block(Block& block, const LaunchInfo& launch, Dim3 index);
Block& worker_block();             // this OS thread's reusable block
void block_here(const char* waiting_in, Site at);  // suspend the current fiber until somebody wakes it
void wake(Block& block, u32 thread);
// These lanes of a warp: they go on while their stacks are in the cache, where the schedule is free to say so.
void wake_warp(Block& block, u32 warp, u32 lanes);
[[noreturn]] void fail(Fault fault, Where where, const std::string& message);
[[noreturn]] inline void misuse(Site at, const std::string& message) { fail(Fault::misuse, where_of(at), message); }
void install_fault_handler();  // faults.cpp
bool land_one_load(Block& block);  // mbarrier.cpp: complete one pending TMA load; false if there is none

// --- bounds and liveness; `at` is a Site, or a Where where it is known already: looked up when something is wrong ----
[[noreturn]] void fail_shared(const Block& block, u32 offset, size_t bytes, Where where);
template <class At>
u8* smem_at(Block& block, u32 offset, size_t bytes, At at) {
  if (offset + bytes > block.launch->smem_bytes) fail_shared(block, offset, bytes, where_of(at));
  return block.smem + offset;
}

// Whether the bytes lie in a live allocation of the block's device.
inline bool lies_in_known(Block& b, const void* p, size_t bytes) {
  const uintptr_t page = reinterpret_cast<uintptr_t>(p) >> 12;
  Block::Found& slot = b.found[(page ^ page >> 6) & 63];
  if (slot.page != page) slot = {page, Memory::instance().find(p)};
  const Allocation* a = slot.allocation;
  const auto* q = static_cast<const u8*>(p);
  return a && !a->freed && a->device == b.launch->device && q >= a->base && q + bytes <= a->base + a->bytes;
}
void check_global_slowly(Block& block, const void* p, size_t bytes, size_t alignment, Where where);
template <class At>
void check_global(Block& block, const void* p, size_t bytes, size_t alignment, At at) {
  if (reinterpret_cast<uintptr_t>(p) % alignment == 0 && lies_in_known(block, p, bytes)) return;
  check_global_slowly(block, p, bytes, alignment, where_of(at));
}

// Implementation table given to every twin.
const Runtime& runtime();

}  // namespace emu
