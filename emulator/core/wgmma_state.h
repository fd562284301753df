// wgmma_state.h - warpgroup-wide operations that are under way, and the registers that wgmma owns meanwhile.
#pragma once
#include <memory>
#include <vector>

#include "../include/llmc_emu/abi.h"

namespace emu {

// The tile that asynchronous wgmmas work on while they own the accumulator's registers: 64 x n values (float or int
// bits), row-major.
struct Accumulator {
  u32 n;
  std::vector<u32> tile;
  explicit Accumulator(u32 columns) : n(columns), tile(size_t(64) * columns) {}
};

// One thread's part of it, from the wgmma that took the registers over to the wait that gives them back.
struct InFlight {
  const u8* begin;
  const u8* end;
  std::shared_ptr<Accumulator> acc;
  u32 group;  // of the last wgmma on it
  Site at;
};

// The thread's count of committed and of completed wgmma groups; whether a wgmma may touch registers again.
struct WgmmaProgress { u32 committed = 0, completed = 0; bool fenced = false; };

struct WgmmaOp {
  u64 desc_a = 0, desc_b = 0;
  bool a_in_regs = false, accumulate = false, takes_over = false, executed = false;
  Mma kind{};
  u32 n = 0;
  std::vector<u32> a_regs;  // 128 x 4
  std::shared_ptr<Accumulator> acc;
  u32 token = 0;
  Site at{};
};
// One warpgroup-wide operation, from its first thread's arrival to its last one's.
struct Collective {
  const char* name = nullptr;
  Site at{};
  u32 arrived = 0, value = 0;   // value: the instruction's immediate
  u32 arrived_of_warp[4] = {}, waiting[4] = {};  // waiting: the lanes of each warp that wait for others
  WgmmaOp op;                   // a wgmma; all threads ask for the same
};
struct Warpgroup {
  std::vector<Collective> ring = std::vector<Collective>(16);  // operation number i lies at i & mask
  u32 mask = 15, begun = 0, done = 0;  // operations at which some thread, and all threads, have arrived
  u32 deferred = 0;                    // wgmmas that execute when the last thread arrives
  std::vector<WgmmaOp> ops;            // checked blocks: issued and not waited for
  std::vector<size_t> groups;          // ops.size() at each commit
  u32 regs = 0;
  std::vector<u32> reg_waiters;

  void make_room() {
    std::vector<Collective> larger(2 * ring.size());
    for (u32 i = done; i < begun; i++) larger[i & (2 * mask + 1)] = std::move(ring[i & mask]);
    ring = std::move(larger);
    mask = 2 * mask + 1;
  }
  void reset(u32 registers) {
    begun = done = deferred = 0;
    ops.clear();
    groups.clear();
    regs = registers;
    reg_waiters.clear();
  }
};

}  // namespace emu
