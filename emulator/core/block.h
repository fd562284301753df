// block.h - one thread block being executed: a fiber per CUDA thread and the state its primitives share.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../include/llmc_emu/abi.h"
#include "memory.h"
#include "order.h"
#include "race.h"
#include "report.h"
#include "tensor_map.h"

namespace emu {

enum class Mode : u32 { forward, reverse, random };
struct Schedule { Mode mode = Mode::forward; u64 seed = 1; u32 workers = 0; };  // 0 workers: all cores

struct Block;

// A queued cp.async of one thread (shared <- global). A decode step has millions.
struct PendingCopy {
  u32 dst = 0;  // shared offset
  u32 bytes = 0, valid = 0;
  u32 token = 0;  // names its pending entries in the shadow memory
  const u8* src = nullptr;
  Site at{};
  bool landed = false;
};

// A queued TMA store of one thread (global <- shared).
struct PendingStore {
  TensorMapData map{};
  i32 coords[5] = {};
  u32 smem_src = 0;
  bool landed = false, read_done = false;
  u32 token = 0;
  Site at{};
};

// One thread's groups of asynchronous copies (cp.async groups, or bulk groups).
template <class Copy>
struct CopyGroups {
  std::vector<Copy> queue;         // those before `first` are complete
  size_t first = 0;
  std::vector<size_t> boundaries;  // queue size at each commit
  bool empty() const { return first == queue.size(); }
  void clear() {
    queue.clear();
    boundaries.clear();
    first = 0;
  }
};

// Registers that an asynchronous wgmma owns until its wait.
struct InFlight { const u8* begin; const u8* end; };

struct Fiber : ThreadView {
  u64 canary = 0;
  void* stack_pointer = nullptr;
  Block* block = nullptr;
  u32 warp = 0;
  bool done = false;
  const char* waiting_in = nullptr;  // what it is blocked in; null when it can run
  Site at{};
  CopyGroups<PendingCopy> copies;
  CopyGroups<PendingStore> stores;
  std::vector<InFlight> in_flight;
  std::vector<u32> proxy_fences;           // own clock values at fence.proxy.async
  std::shared_ptr<Knowledge> fence_release;  // what the last __threadfence of this thread published
  std::vector<std::shared_ptr<Knowledge>> relaxed;  // read by relaxed atomics, not yet fenced
};

struct Warp { u32 arrived = 0, mask = 0; const char* name = nullptr; Site at{}; void* args[32] = {}; };

struct Barrier {
  u32 arrived = 0, need = 0;
  std::vector<u32> waiters;
  u32 line_of_warp[kMaxThreads / 32] = {};  // where each warp arrived in this generation; 0: it has not
  Clock clock;
  Site at{};
};

struct Mbarrier {
  u32 need = 0, pending = 0, phase = 0, phases = 0;  // phase: parity of the current one; phases: completed
  i32 tx = 0;
  u32 init_thread = 0, init_clock = 0;
  bool visible_to_tma = false;
  std::vector<std::pair<u32, u32>> waiters;  // (thread, parity)
  Clock arriving, completed;
  u32 column = 0;                            // its pseudo-thread in the vector clocks
  Site at{};
};

struct PendingLoad {
  u32 dst = 0, bar = 0, token = 0, thread = 0;
  TensorMapData map{};
  i32 coords[5] = {};
  Site at{};
};

// How a TMA load laid a box out: a wgmma that reads it must name the same swizzle.
struct Layout { u32 bytes = 0, span = 0; Site at{}; };

// One asynchronous wgmma. The accumulator lives in `Accumulator` while any operation on it is in flight.
struct Accumulator {
  void* thread_regs[128];
  std::vector<u32> tile;  // 64 x n values (float or int bits), row-major
  u32 n = 0, users = 0;
};
struct WgmmaOp {
  Mma kind{};
  u32 n = 0;
  u64 desc_a = 0, desc_b = 0;
  bool a_in_regs = false, accumulate = false, executed = false;
  std::vector<u32> a_regs;  // 128 x 4
  Accumulator* acc = nullptr;
  u32 token = 0;
  Site at{};
};
// One warpgroup-wide operation, from its first thread's arrival to its last one's, which executes it.
struct Collective {
  const char* name = nullptr;
  Site at{};
  u32 arrived = 0, value = 0;   // value: what a wait or setmaxnreg is given
  WgmmaOp op;                   // a wgmma; all threads ask for the same
  std::vector<u32> tile;        // its accumulator, where this operation took the registers over
  void* regs[128];              // each thread's accumulator, valid once it has arrived
};
struct Warpgroup {
  std::deque<Collective> pending;  // in program order
  u32 next[128] = {}, done = 0;    // operations each thread has arrived at, and that have been executed
  bool fenced = false;
  std::vector<WgmmaOp> ops;
  std::vector<size_t> groups;  // ops.size() at each commit
  std::vector<std::unique_ptr<Accumulator>> accumulators;
  u32 regs = 0;
  std::vector<u32> reg_waiters;
};

constexpr u32 kNamedBarriers = 16;
constexpr size_t kMaxSmem = size_t{228} << 10;

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
  Fiber* fibers[kMaxThreads] = {};
  Warp warps[kMaxThreads / 32];
  Barrier barriers[kNamedBarriers];
  Warpgroup warpgroups[kMaxThreads / 128];
  std::unordered_map<u32, Mbarrier> mbarriers;
  std::deque<PendingLoad> loads;
  std::map<u32, Layout> layouts;  // by shared offset
  std::vector<u32> ready;
  size_t ready_head = 0;
  u64 rng = 1;
  u32 next_token = 1;
  u32 free_regs = 0;
  bool waited_for_grid = false;
  void* main_stack_pointer = nullptr;
  Failure failure;
  RaceState race;
  // Unchecked twins: allocations found lately, by page. No two allocations share a page.
  struct Found { uintptr_t page = 0; const Allocation* allocation = nullptr; } found[64];

  Mode mode() const { return launch->schedule.mode; }
  bool checked() const { return launch->checked; }
  u64 random() { rng ^= rng << 13; rng ^= rng >> 7; return rng ^= rng << 17; }
  bool coin() { return mode() == Mode::reverse || (mode() == Mode::random && (random() & 1)); }
};

inline Fiber& me() { return static_cast<Fiber&>(self()); }

// --- scheduling (fiber.cpp) -----------------------------------------------------------------------------
void run_block(Block& block, const LaunchInfo& launch, Dim3 index);
Block& worker_block();             // this OS thread's reusable block
void block_here(const char* waiting_in, Site at);  // suspend the current fiber until somebody wakes it
void wake(Block& block, u32 thread);
[[noreturn]] void fail(Fault fault, Where where, const std::string& message);
[[noreturn]] inline void misuse(Site at, const std::string& message) { fail(Fault::misuse, where_of(at), message); }
void install_fault_handler();
bool land_one_load(Block& block);  // mbarrier.cpp: complete one pending TMA load; false if there is none

// --- shared memory ------------------------------------------------------------------------------------
u8* smem_at(Block& block, u32 offset, size_t bytes, Where where);

// Implementation table given to every twin.
const Runtime& runtime();

}  // namespace emu
