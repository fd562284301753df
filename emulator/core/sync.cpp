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

namespace {

// By the last lane to arrive.
__attribute__((noinline)) void execute(Block& b, u32 warp, u32 last, WarpExec exec) {
  Warp& w = b.warps[warp];
  const u32 mask = w.mask;
  w.arrived = 0;
  void* args[32];
  for (u32 l = 0; l < 32; l++) args[l] = mask >> l & 1 ? w.args[l] : nullptr;
  exec(args, mask);
  wake_warp(b, warp, mask & ~(1u << last));
}

[[noreturn]] __attribute__((noinline)) void diverged(const Warp& w, u32 mask, const char* name, Site at) {
  misuse(at, text("divergent warp: %s (mask 0x%08x) meets %s (mask 0x%08x) of %s", name, mask, w.name, w.mask,
                  describe(where_of(w.at)).c_str()));
}

}  // namespace

void warp_op(u32 mask, const char* name, bool aligned, void* arg, WarpExec exec, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  Warp& w = b.warps[f.warp];
  if (!(mask >> f.lane & 1)) misuse(at, text("%s: lane %u is not in its own mask 0x%08x", name, f.lane, mask));
  if (!w.arrived) w.name = name, w.mask = mask, w.at = at;
  else if (w.name != name || w.mask != mask || (aligned && w.at.line != at.line)) diverged(w, mask, name, at);
  w.args[f.lane] = arg;
  w.arrived |= 1u << f.lane;
  if (w.arrived != mask) return block_here(name, at);
  execute(b, f.warp, f.lane, exec);
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

}  // namespace emu
