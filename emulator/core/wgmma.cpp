// wgmma.cpp - asynchronous warpgroup matrix multiply (PTX ISA: wgmma): register ownership and groups. Accumulators hold
// NaN from issue to wait. In checked blocks operands are read when the last thread has issued, when the operation is
// waited for, or at random. In others the first thread to issue executes, where descriptors say all there is to know.
#include "wgmma_operand.h"

#include "primitives.h"
#include "warpgroup.h"

namespace emu {

namespace {

template <class F>
void each_smem_range(Block& b, const WgmmaOp& op, F&& f) {
  auto chunk = [&](u32, u32, u32 address) { f(b.smem + address, size_t{16}); };
  if (!op.a_in_regs) Operand(op.desc_a).each_chunk(64, chunk);
  Operand(op.desc_b).each_chunk(op.n, chunk);
}

// The operand lies in shared memory, swizzled as the TMA load that brought it says.
void check_operand(Block& b, u64 desc, u32 rows, Site at) {
  const Operand x(desc);
  if (x.end(rows) > b.launch->smem_bytes) x.each_chunk(rows, [&](u32, u32, u32 address) { smem_at(b, address, 16, at); });
  auto it = b.layouts.upper_bound(x.start);
  if (it == b.layouts.begin()) return;
  const auto& [offset, layout] = *--it;
  if (x.start < offset + layout.bytes && layout.span != x.span)
    misuse(at, text("wgmma: the descriptor at 0x%x says %u-byte swizzle, the TMA load at %s wrote %u-byte swizzle", x.start,
                    x.span, describe(where_of(layout.at)).c_str(), layout.span));
}

[[noreturn]] void other_operands(const Fiber& f, Site at) {
  misuse(at, text("wgmma: thread %u gives other descriptors, or another accumulator, than another thread of the same "
                  "warpgroup", f.id));
}

// This thread's part of the operation's accumulator: what it holds already, or its registers from now on.
InFlight& take_over(Fiber& f, WgmmaOp& op, bool first, void* acc) {
  const auto *begin = static_cast<const u8*>(acc), *end = begin + op.n * 2;
  for (InFlight& held : f.in_flight) {
    if (end <= held.begin || held.end <= begin) continue;
    if (held.begin != begin || held.end != end)
      misuse(op.at, text("wgmma: the accumulator overlaps, but is not, that of the wgmma at %s, still in flight",
                         describe(where_of(held.at)).c_str()));
    if (first) op.acc = held.acc;
    else if (op.acc != held.acc) other_operands(f, op.at);
    return held;
  }
  if (first) op.takes_over = true, op.acc = std::make_shared<Accumulator>(op.n);
  else if (!op.takes_over) other_operands(f, op.at);
  const auto* values = static_cast<const u32*>(acc);
  for (u32 v = 0; op.accumulate && v < op.n / 2; v++) op.acc->tile[tile_index(f.id % 128, v, op.n)] = values[v];
  std::memset(acc, 0xFF, op.n * 2);
  f.in_flight.push_back({begin, end, op.acc, 0, op.at});
  return f.in_flight.back();
}

void issue(Warpgroup& g, Block& b, Collective& c) {
  WgmmaOp& op = c.op;
  if (op.executed) return;
  g.deferred--;
  if (!b.checked()) return multiply(b, op);
  op.token = b.next_token++;
  const u32 leader = u32(&g - b.warpgroups) * 128;
  each_smem_range(b, op, [&](const u8* p, size_t n) { race_pend(b, p, n, {kAsync, where_of(op.at), leader}, op.token); });
  g.ops.push_back(std::move(op));
  // Operations on one accumulator execute in order, so early means: everything issued so far.
  if (b.lands_at_once()) for (WgmmaOp& x : g.ops) multiply(b, x);
}

// Checked blocks: the operations that this wait completes execute at last, and their reads are known to be over.
void complete(Warpgroup& g, Block& b, Collective& c) {
  if (g.groups.size() <= c.value) return;
  const u32 group = u32(&g - b.warpgroups), base = group * 128;
  const size_t groups = g.groups.size() - c.value, n = g.groups[groups - 1];
  auto& waits = b.race.wgmma_waits[group];
  const u32 stamp = u32(waits.size());
  std::array<u32, 4> lead;
  for (u32 w = 0; w < 4; w++) {
    const u32 leader = base + w * 32;
    lead[w] = b.race.row(leader)[leader];
    for (u32 l = 0; l < 32; l++) b.race.row(leader + l)[leader] = lead[w];  // the wait synchronises each warp
    clock_tick(b, leader);
  }
  waits.push_back(lead);
  for (size_t i = 0; i < n; i++) {
    multiply(b, g.ops[i]);
    each_smem_range(b, g.ops[i], [&](const u8* p, size_t bytes) {
      race_land(b, p, bytes, g.ops[i].token, kWarpgroup + group, stamp);
    });
  }
  g.ops.erase(g.ops.begin(), g.ops.begin() + long(n));
  g.groups.erase(g.groups.begin(), g.groups.begin() + long(groups));
  for (size_t& boundary : g.groups) boundary -= n;
}

}  // namespace

void no_warpgroup(const char* name, Site at) {
  misuse(at, text("%s: thread %u is not in a full warpgroup of 128 threads", name, me().id));
}

void warpgroup_diverged(const Collective& c, const char* name, Site at, u32 value) {
  misuse(at, text("divergent warpgroup: %s %u meets %s %u at %s", name, value, c.name, c.value,
                  describe(where_of(c.at)).c_str()));
}

void wgmma(Mma kind, u32 n, void* acc, const u32* a, u64 desc_a, u64 desc_b, bool accumulate, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  Collective& c = warpgroup_join("wgmma", at, n);
  WgmmaOp& op = c.op;
  const bool first = !c.arrived;
  if (first) {
    op = {};
    op.kind = kind, op.n = n, op.desc_a = desc_a, op.desc_b = desc_b;
    op.a_in_regs = a != nullptr, op.accumulate = accumulate, op.at = at;
    if (a) op.a_regs.resize(128 * 4);
    check_operand(b, desc_b, n, at);
    if (!a) check_operand(b, desc_a, 64, at);
  } else if (op.kind != kind || op.a_in_regs != (a != nullptr) || op.desc_a != desc_a || op.desc_b != desc_b ||
             op.accumulate != accumulate) {
    other_operands(f, at);
  }
  if (!f.wgmma.fenced)
    misuse(at, "wgmma without wgmma_fence: the first wgmma, and the first after a wgmma_wait, needs one before it "
               "(registers of the accumulator may have been touched)");
  if (a) std::copy(a, a + 4, op.a_regs.begin() + f.id % 128 * 4);
  take_over(f, op, first, acc).group = f.wgmma.committed;
  if (first) {
    const bool values_of_all = a || (op.takes_over && accumulate);
    if (b.checked() || f.group->deferred || values_of_all) f.group->deferred++;
    else multiply(b, op);
  }
  warpgroup_arrive(c, Meet::nobody, issue);
}

void wgmma_fence(Site at) {
  me().wgmma.fenced = true;
  warpgroup_arrive(warpgroup_join("wgmma.fence", at), Meet::nobody, [](Warpgroup&, Block&, Collective&) {});
}

void wgmma_commit(Site at) {
  me().wgmma.committed++;
  warpgroup_arrive(warpgroup_join("wgmma.commit_group", at), Meet::nobody, [](Warpgroup& g, Block& b, Collective&) {
    if (b.checked()) g.groups.push_back(g.ops.size());
  });
}

void wgmma_wait(u32 pending, Site at) {
  Fiber& f = me();
  Collective& c = warpgroup_join("wgmma.wait_group", at, pending);
  warpgroup_arrive(c, f.group->deferred ? Meet::warpgroup : Meet::warp, [](Warpgroup& g, Block& b, Collective& x) {
    if (b.checked()) complete(g, b, x);
  });
  if (f.wgmma.committed - f.wgmma.completed <= pending) return;
  f.wgmma.completed = f.wgmma.committed - pending;
  f.wgmma.fenced = false;
  auto done = [&](InFlight& held) {
    if (held.group >= f.wgmma.completed) return false;
    auto* regs = reinterpret_cast<u32*>(const_cast<u8*>(held.begin));
    for (u32 v = 0; v < held.acc->n / 2; v++) regs[v] = held.acc->tile[tile_index(f.id % 128, v, held.acc->n)];
    return true;
  };
  f.in_flight.erase(std::remove_if(f.in_flight.begin(), f.in_flight.end(), done), f.in_flight.end());
}

}  // namespace emu
