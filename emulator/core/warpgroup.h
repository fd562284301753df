// warpgroup.h - warpgroup-wide operations: each thread joins, fills in its part and arrives. Threads that need nothing of
// each other do not wait, so that one may run ahead of the others by many operations.
#pragma once
#include <utility>

#include "block.h"

namespace emu {

[[noreturn]] void no_warpgroup(const char* name, Site at);
[[noreturn]] void warpgroup_diverged(const Collective& c, const char* name, Site at, u32 value);

// name must be a literal (compared by address). value: the instruction's immediate, where it has one.
inline Collective& warpgroup_join(const char* name, Site at, u32 value = 0) {
  Fiber& f = me();
  if (!f.group) no_warpgroup(name, at);
  Warpgroup& g = *f.group;
  const u32 number = f.group_operations++;
  if (number == g.begun) {
    if (g.begun - g.done > g.mask) g.make_room();
    g.begun++;
    Collective& first = g.ring[number & g.mask];
    first.name = name, first.at = at, first.value = value, first.arrived = 0;
    for (u32 w = 0; w < 4; w++) first.arrived_of_warp[w] = first.waiting[w] = 0;
    return first;
  }
  Collective& c = g.ring[number & g.mask];
  if (c.name != name || c.at.line != at.line || c.value != value) warpgroup_diverged(c, name, at, value);
  return c;
}

// For whom a thread waits before it goes on. Every one of these instructions holds a warp together (.sync.aligned); only
// those after which a thread may tell others that it is done with something need to do so here.
enum class Meet { nobody, warp, warpgroup };

// The last thread to arrive calls exec(warpgroup, block, collective). In checked blocks everybody waits for it: an
// operation happens at the clocks its threads have when they issue it. c may be gone when this returns.
template <class Exec>
void warpgroup_arrive(Collective& c, Meet meet, Exec&& exec) {
  Fiber& f = me();
  Block& b = *f.block;
  if (b.checked()) meet = Meet::warpgroup;
  const u32 lane = f.id % 128, warp = lane / 32;
  u32& waiting = c.waiting[warp];  // lanes of this warp
  const bool last = ++c.arrived == 128, last_of_warp = ++c.arrived_of_warp[warp] == 32;
  if (last) {
    exec(*f.group, b, c);
    f.group->done++;
    for (u32 w = 0; w < 4; w++) wake_warp(b, f.warp - warp + w, c.waiting[w]);
  } else if (meet == Meet::warp && last_of_warp) {
    wake_warp(b, f.warp, std::exchange(waiting, 0));
  } else if (meet != Meet::nobody) {
    waiting |= 1u << f.lane;
    block_here(c.name, c.at);
  }
}

}  // namespace emu
