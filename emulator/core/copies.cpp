// copies.cpp - a thread's own asynchronous copies: cp.async groups and TMA stores with their bulk groups
// (PTX ISA: cp.async, cp.async.bulk.tensor, and their commit_group and wait_group). Each lands when it is issued, when it is waited for, or at random.
#include "primitives.h"
#include "tma.h"

namespace emu {

namespace {

void move(Block& b, const PendingCopy& c) {
  u8* dst = b.smem + c.dst;
  if (c.bytes == 16 && c.valid == 16) return void(std::memcpy(dst, c.src, 16));
  if (c.valid) std::memcpy(dst, c.src, c.valid);
  std::memset(dst + c.valid, 0, c.bytes - c.valid);
}

void land_copy(Block& b, PendingCopy& c) {
  if (c.landed) return;
  c.landed = true;
  if (c.valid) check_global(b, c.src, c.valid, 1, c.at);  // it may have been freed since the issue
  move(b, c);
}

void land_store(Block& b, PendingStore& c) {
  if (c.landed) return;
  c.landed = true;
  for_each_tma_row(c.map, c.smem_src, c.coords, [&](const TmaRow& row) {
    for_each_run(row.smem, row.begin, row.end, tma_span(c.map), [&](u32 smem, u32 x, u32 bytes) {
      std::memcpy(row.global + (x - row.begin), b.smem + smem, bytes);
    });
  });
}

// Completes all but the `pending` most recent groups; drops them from the queue.
template <class Copy, class F>
void complete_groups(CopyGroups<Copy>& g, u32 pending, F&& complete) {
  if (g.boundaries.size() <= pending) return;
  const size_t groups = g.boundaries.size() - pending, n = g.boundaries[groups - 1];
  for (size_t i = g.first; i < n; i++) complete(g.queue[i]);
  g.first = n;
  g.boundaries.erase(g.boundaries.begin(), g.boundaries.begin() + long(groups));
  if (g.first < g.queue.size() && g.first < 256) return;  // moving the rest forward now and then is enough
  g.queue.erase(g.queue.begin(), g.queue.begin() + long(n));
  for (size_t& boundary : g.boundaries) boundary -= n;
  g.first = 0;
}

enum class StorePhase { kIssued, kRead, kLanded };  // kRead: shared memory has been read

void race_store(Block& b, const PendingStore& c, u32 thread, StorePhase phase) {
  const Where where = where_of(c.at);
  for_each_tma_row(c.map, c.smem_src, c.coords, [&](const TmaRow& row) {
    const u32 bytes = row.end - row.begin;
    if (!bytes) return;
    if (phase == StorePhase::kIssued) check_global(b, row.global, bytes, 1, c.at);
    if (!b.checked()) return;
    const u32 clock = b.race.row(thread)[thread];
    if (phase == StorePhase::kIssued) race_pend(b, row.global, bytes, {kWrite | kAsync, where, thread}, c.token);
    if (phase == StorePhase::kLanded) return race_land(b, row.global, bytes, c.token, thread, clock);
    for_each_run(row.smem, row.begin, row.end, tma_span(c.map), [&](u32 smem, u32, u32 run) {
      if (phase == StorePhase::kIssued) race_pend(b, b.smem + smem, run, {kAsync, where, thread}, c.token);
      else race_land(b, b.smem + smem, run, c.token, thread, clock);
    });
  });
}

}  // namespace

void cp_async(u32 dst, const void* src, u32 bytes, u32 valid, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  if (dst % bytes) fail(Fault::misaligned, where_of(at), text("cp.async: shared address 0x%x is not %u-byte aligned", dst, bytes));
  u8* target = smem_at(b, dst, bytes, at);
  if (valid) check_global(b, src, bytes, bytes, at);
  PendingCopy c;
  c.dst = dst, c.src = static_cast<const u8*>(src), c.bytes = bytes, c.valid = valid, c.at = at;
  const bool at_once = b.lands_at_once();
  if (at_once && !b.checked()) return move(b, c);  // its group has nothing to wait for
  if (b.checked()) {
    c.token = b.next_token++;
    race_pend(b, target, bytes, {kWrite, where_of(at), f.id}, c.token);
    if (valid) race_pend(b, src, valid, {0, where_of(at), f.id}, c.token);
  }
  if (at_once) land_copy(b, c);
  f.copies.queue.push_back(c);
}

void cp_async_commit(Site) { me().copies.commit(); }

void cp_async_wait(u32 pending, Site) {
  Fiber& f = me();
  Block& b = *f.block;
  complete_groups(f.copies, pending, [&](PendingCopy& c) {
    land_copy(b, c);
    if (!b.checked()) return;
    const u32 clock = b.race.row(f.id)[f.id];
    race_land(b, b.smem + c.dst, c.bytes, c.token, f.id, clock);
    if (c.valid) race_land(b, c.src, c.valid, c.token, f.id, clock);
  });
}

void tma_store(const void* map, u32 src, u32 rank, const i32* coords, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  PendingStore c;
  c.map = checked_map(map, rank, src, at);
  c.smem_src = src, c.at = at;
  for (u32 i = 0; i < rank; i++) c.coords[i] = coords[i];
  smem_at(b, src, tma_box_bytes(c.map), at);
  if (b.checked()) c.token = b.next_token++;
  race_store(b, c, f.id, StorePhase::kIssued);
  if (b.lands_at_once()) land_store(b, c);
  f.stores.queue.push_back(c);
}

void tma_commit(Site) { me().stores.commit(); }

// cp.async.bulk.wait_group(.read): with .read only the shared-memory source is known to be read.
void tma_wait(u32 pending, bool read_only, Site) {
  Fiber& f = me();
  Block& b = *f.block;
  if (read_only) {
    const size_t groups = f.stores.boundaries.size();
    if (groups <= pending) return;
    for (size_t i = f.stores.first; i < f.stores.boundaries[groups - pending - 1]; i++) {
      PendingStore& c = f.stores.queue[i];
      land_store(b, c);
      if (!c.read_done) race_store(b, c, f.id, StorePhase::kRead);
      c.read_done = true;
    }
    return;
  }
  complete_groups(f.stores, pending, [&](PendingStore& c) {
    land_store(b, c);
    if (!c.read_done) race_store(b, c, f.id, StorePhase::kRead);
    race_store(b, c, f.id, StorePhase::kLanded);
  });
}

}  // namespace emu
