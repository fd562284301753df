// sync.cpp - barriers and warp-wide operations (PTX ISA: barrier, bar.warp.sync, shfl.sync, vote.sync).
#include "block.h"
#include "primitives.h"

namespace emu {

namespace {

void arrive(u32 id, u32 count, Site at, bool wait, const char* name) {
  Fiber& f = me();
  Block& b = *f.block;
  if (id >= kNamedBarriers) misuse(at, text("barrier id %u: a block has %u", id, kNamedBarriers));
  const u32 need = count ? count : b.n;
  if (count && (count % 32 || count > b.n))
    misuse(at, text("barrier %u: %u threads is not a multiple of 32 up to %u", id, count, b.n));
  Barrier& bar = b.barriers[id];
  if (!bar.arrived) bar.need = need;
  if (bar.need != need) misuse(at, text("barrier %u: expects %u threads here, %u at %s", id, need, bar.need,
                                        describe(where_of(bar.at)).c_str()));
  u32& line = bar.line_of_warp[f.warp];
  if (line && line != at.line)
    misuse(at, text("divergent barrier: warp %u is also at line %u of the same file in barrier %u", f.warp, line, id));
  line = at.line;
  bar.at = at;
  if (b.checked()) {
    clock_join(bar.clock, b.race.row(f.id), b.race.stride);
    if (!wait) clock_tick(b, f.id);
  }
  const bool last = ++bar.arrived == bar.need;
  if (wait && !last) {
    bar.waiters.push_back(f.id);
    return block_here(name, at);
  }
  if (!last) return;
  if (b.checked()) {
    auto release = [&](u32 t) {
      clock_join(b.race.row(t), bar.clock.data(), b.race.stride);
      clock_tick(b, t);
    };
    if (wait) release(f.id);
    for (u32 t : bar.waiters) release(t);
  }
  const std::vector<u32> waiters = std::move(bar.waiters);
  bar = Barrier{};
  for (u32 t : waiters) wake(b, t);
}

}  // namespace

void barrier_sync(u32 id, u32 count, Site at) { arrive(id, count, at, true, count ? "barrier.sync" : "__syncthreads"); }
void barrier_arrive(u32 id, u32 count, Site at) { arrive(id, count, at, false, "barrier.arrive"); }

void warp_op(u32 mask, const char* name, bool aligned, void* arg, WarpExec exec, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  Warp& w = b.warps[f.warp];
  if (!(mask >> f.lane & 1)) misuse(at, text("%s: lane %u is not in its own mask 0x%08x", name, f.lane, mask));
  if (!w.arrived) w.name = name, w.mask = mask, w.at = at;
  else if (w.name != name || w.mask != mask || (aligned && w.at.line != at.line))
    misuse(at, text("divergent warp: %s (mask 0x%08x) meets %s (mask 0x%08x) of %s", name, mask, w.name, w.mask,
                    describe(where_of(w.at)).c_str()));
  w.args[f.lane] = arg;
  w.arrived |= 1u << f.lane;
  if (w.arrived != mask) return block_here(name, at);
  w.arrived = 0;
  void* args[32];
  for (u32 l = 0; l < 32; l++) args[l] = mask >> l & 1 ? w.args[l] : nullptr;
  exec(args, mask);
  for (u32 l = 0; l < 32; l++)
    if ((mask >> l & 1) && l != f.lane) wake(b, f.warp * 32 + l);
}

void syncwarp(u32 mask, Site at) {
  warp_op(mask, "__syncwarp", false, nullptr, [](void**, u32 lanes) {
    Fiber& f = me();
    Block& b = *f.block;
    if (!b.checked()) return;
    Clock all;
    for (u32 l = 0; l < 32; l++)
      if (lanes >> l & 1) clock_join(all, b.race.row(f.warp * 32 + l), b.race.stride);
    for (u32 l = 0; l < 32; l++)
      if (lanes >> l & 1) {
        clock_join(b.race.row(f.warp * 32 + l), all.data(), b.race.stride);
        clock_tick(b, f.warp * 32 + l);
      }
  }, at);
}

Collective& warpgroup_join(const char* name, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  const u32 base = f.id / 128 * 128;
  if (base + 128 > b.n) misuse(at, text("%s: thread %u is not in a full warpgroup of 128 threads", name, f.id));
  Warpgroup& g = b.warpgroups[f.id / 128];
  const size_t index = g.next[f.id - base]++ - g.done;
  if (index == g.pending.size()) {
    g.pending.emplace_back();
    g.pending.back().name = name, g.pending.back().at = at;
  }
  Collective& c = g.pending[index];
  if (c.name != name || c.at.line != at.line)
    misuse(at, text("divergent warpgroup: %s meets %s at %s", name, c.name, describe(where_of(c.at)).c_str()));
  return c;
}

// In checked blocks everybody waits: an operation happens at the clocks its threads have when they issue it.
void warpgroup_arrive(Collective& c, CollectiveExec exec, bool wait) {
  Fiber& f = me();
  Block& b = *f.block;
  wait = wait || b.checked();
  if (++c.arrived < 128) {
    if (wait) block_here(c.name, c.at);
    return;
  }
  Warpgroup& g = b.warpgroups[f.id / 128];
  exec(g, b, c);  // the front: who arrives here has arrived at all before it
  g.pending.pop_front();
  g.done++;
  if (!wait) return;
  const u32 base = f.id / 128 * 128;
  for (u32 t = base; t < base + 128; t++)
    if (t != f.id) wake(b, t);
}

}  // namespace emu
