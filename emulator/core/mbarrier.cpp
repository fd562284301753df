// mbarrier.cpp - mbarrier objects and the TMA loads that complete on them (PTX ISA: mbarrier; cp.async.bulk.tensor).
// The state lives beside the shared memory; the 8 bytes themselves hold poison.
#include "primitives.h"
#include "tma.h"

namespace emu {

namespace {

constexpr i32 kMaxTx = (1 << 20) - 1;

Mbarrier& find(Block& b, u32 bar, const char* what, Site at) {
  Mbarrier* found = b.mbarriers.find(bar);
  if (!found) misuse(at, text("%s: no mbarrier was initialised at shared address 0x%x", what, bar));
  Mbarrier& m = *found;
  const Fiber& f = me();
  if (b.checked() && b.race.row(f.id)[m.init_thread] < m.init_clock)
    fail(Fault::race, where_of(at), text("%s by thread %u is not ordered after the mbarrier's initialisation at %s by thread %u",
                                         what, f.id, describe(where_of(m.at)).c_str(), m.init_thread));
  return m;
}

void complete_if_done(Block& b, Mbarrier& m) {
  if (m.pending || m.tx) return;
  m.phase ^= 1;
  m.phases++;
  m.pending = m.need;
  if (b.checked()) {
    clock_join(m.completed, m.arriving.data(), u32(m.arriving.size()));
    m.arriving.clear();
  }
  size_t kept = 0;
  for (const auto& waiter : m.waiters) {
    if (waiter.second != m.phase) wake(b, waiter.first);
    else m.waiters[kept++] = waiter;
  }
  m.waiters.resize(kept);
}

void land(Block& b, const PendingLoad& load) {
  const u32 span = tma_span(load.map);
  auto zero = [&](u32 smem, u32, u32 bytes) { std::memset(b.smem + smem, 0, bytes); };
  for_each_tma_row(load.map, load.dst, load.coords, [&](const TmaRow& row) {
    for_each_run(row.smem, 0, row.begin, span, zero);
    for_each_run(row.smem, row.begin, row.end, span, [&](u32 smem, u32 x, u32 bytes) {
      const u8* from = row.global + (x - row.begin);
      if (bytes == 16) std::memcpy(b.smem + smem, from, 16);
      else std::memcpy(b.smem + smem, from, bytes);
    });
    for_each_run(row.smem, row.end, row.bytes, span, zero);
  });
  Mbarrier& m = *b.mbarriers.find(load.bar);
  const u32 bytes = u32(tma_box_bytes(load.map));
  if (b.checked()) {
    const u32 column = b.n + m.column, clock = m.phases + 1;
    race_land(b, b.smem + load.dst, bytes, load.token, column, clock);
    if (m.arriving.size() <= column) m.arriving.resize(b.race.stride, 0);
    m.arriving[column] = clock;
  }
  m.tx -= i32(bytes);
  complete_if_done(b, m);
}

}  // namespace

bool land_one_load(Block& b) {
  if (b.loads.empty()) return false;
  const size_t i = b.mode() == Mode::random ? b.random() % b.loads.size() : 0;
  const PendingLoad load = b.loads[i];
  b.loads.erase(b.loads.begin() + long(i));
  land(b, load);
  return true;
}

void mbar_init(u32 bar, u32 count, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  if (bar % 8) fail(Fault::misaligned, where_of(at), text("mbarrier address 0x%x is not 8-byte aligned", bar));
  u8* p = smem_at(b, bar, 8, at);
  if (!count || count > u32(kMaxTx)) misuse(at, text("mbarrier count %u is not in 1..%d", count, kMaxTx));
  if (b.mbarriers.find(bar)) misuse(at, text("mbarrier at 0x%x is initialised twice", bar));
  if (b.mbarriers.all.size() >= kPseudoThreads) misuse(at, text("more than %u mbarriers in one block", kPseudoThreads));
  Mbarrier m;
  m.address = bar;
  m.need = m.pending = count;
  m.column = u32(b.mbarriers.all.size());
  m.at = at;
  m.init_thread = f.id;
  if (b.checked()) {
    race_access(b, p, 8, {kWrite, where_of(at), f.id});
    race_mark_sync(b, bar, 8, true);
    m.init_clock = b.race.row(f.id)[f.id];
  }
  b.mbarriers.add(std::move(m));
}

void mbar_arrive(u32 bar, u32 tx_bytes, bool expect, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  Mbarrier& m = find(b, bar, expect ? "mbarrier.arrive.expect_tx" : "mbarrier.arrive", at);
  m.tx += i32(tx_bytes);
  if (m.tx > kMaxTx) misuse(at, text("mbarrier transaction count %d exceeds %d bytes", m.tx, kMaxTx));
  if (!m.pending) misuse(at, text("mbarrier at 0x%x: more arrivals in one phase than its count of %u", bar, m.need));
  if (b.checked()) {
    clock_join(m.arriving, b.race.row(f.id), b.race.stride);
    clock_tick(b, f.id);
  }
  m.pending--;
  complete_if_done(b, m);
}

void mbar_wait(u32 bar, u32 parity, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  if (parity > 1) misuse(at, text("mbarrier.try_wait.parity: parity %u is not 0 or 1", parity));
  Mbarrier& m = find(b, bar, "mbarrier.try_wait", at);
  if (m.phase == parity) {
    m.waiters.emplace_back(f.id, parity);
    block_here("mbarrier wait", at);
  }
  if (b.checked() && !m.completed.empty()) clock_join(b.race.row(f.id), m.completed.data(), b.race.stride);
}

void fence_mbar_init(Site) {
  Fiber& f = me();
  for (Mbarrier& m : f.block->mbarriers.all)
    if (m.init_thread == f.id) m.visible_to_tma = true;
}

void fence_proxy_async(Site at) {
  Fiber& f = me();
  fence_mbar_init(at);
  if (!f.block->checked()) return;
  f.proxy_fences.push_back(f.block->race.row(f.id)[f.id]);
  clock_tick(*f.block, f.id);
}

void tma_load(u32 dst, const void* map, u32 bar, u32 rank, const i32* coords, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  PendingLoad load;
  load.map = checked_map(map, rank, dst, at);  // by value: the kernel parameter dies with its thread
  load.dst = dst, load.bar = bar, load.thread = f.id, load.at = at;
  for (u32 i = 0; i < rank; i++) load.coords[i] = coords[i];
  const size_t bytes = tma_box_bytes(load.map);
  u8* target = smem_at(b, dst, bytes, at);
  Mbarrier& m = find(b, bar, "TMA load", at);
  if (!m.visible_to_tma)
    misuse(at, text("TMA load: the mbarrier initialised at %s is not visible to the async proxy "
                    "(mbar_fence_init is missing)", describe(where_of(m.at)).c_str()));
  for_each_tma_row(load.map, dst, load.coords, [&](const TmaRow& row) {
    if (row.begin == row.end) return;
    check_global(b, row.global, row.end - row.begin, 1, at);
    if (b.checked()) race_access(b, row.global, row.end - row.begin, {kAsync, where_of(at), f.id});
  });
  if (b.checked()) {
    load.token = b.next_token++;
    race_pend(b, target, bytes, {kWrite | kAsync, where_of(at), f.id}, load.token);
  }
  b.layouts[dst] = {u32(bytes), tma_span(load.map), at};
  if (b.mode() != Mode::random && b.lands_at_once()) land(b, load);
  else b.loads.push_back(load);
}

}  // namespace emu
