// copies.h - asynchronous copies that are under way, and the mbarriers that TMA loads complete on.
#pragma once
#include <cstring>
#include <vector>

#include "../include/llmc_emu/abi.h"
#include "race.h"
#include "tensor_map.h"

namespace emu {

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
  void commit() {  // empty groups count, but not before the first copy
    if (!queue.empty()) boundaries.push_back(queue.size());
  }
  void clear() {
    queue.clear();
    boundaries.clear();
    first = 0;
  }
};

struct Mbarrier {
  u32 address = 0;  // shared offset
  u32 need = 0, pending = 0, phase = 0, phases = 0;  // phase: parity of the current one; phases: completed
  i32 tx = 0;
  u32 init_thread = 0, init_clock = 0;
  bool visible_to_tma = false;
  std::vector<std::pair<u32, u32>> waiters;  // (thread, parity)
  Clock arriving, completed;
  u32 column = 0;                            // its pseudo-thread in the vector clocks
  Site at{};
};

// The mbarriers of a block. Every wait of every thread looks one up: by hash, where the one in question mostly is.
struct Mbarriers {
  std::vector<Mbarrier> all;
  u8 place[4 * kPseudoThreads] = {};  // 1 + index in `all`; 0: free
  static u32 hash(u32 address, u32 probe) { return (address / 8 + probe) % (4 * kPseudoThreads); }
  Mbarrier* find(u32 address) {
    for (u32 probe = 0; u8 i = place[hash(address, probe)]; probe++)
      if (all[i - 1].address == address) return &all[i - 1];
    return nullptr;
  }
  void add(Mbarrier m) {
    u32 probe = 0;
    all.reserve(kPseudoThreads);  // as many as there may be: threads that wait hold on to theirs
    while (place[hash(m.address, probe)]) probe++;
    all.push_back(std::move(m));
    place[hash(all.back().address, probe)] = u8(all.size());
  }
  void clear() {
    if (all.empty()) return;
    all.clear();
    std::memset(place, 0, sizeof place);
  }
};

struct PendingLoad {
  u32 dst = 0, bar = 0, token = 0, thread = 0;
  TensorMapData map{};
  i32 coords[5] = {};
  Site at{};
};

// How a TMA load laid a box out: a wgmma that reads it must name the same swizzle.
struct Layout { u32 bytes = 0, span = 0; Site at{}; };

}  // namespace emu
