// copies.cpp - a thread's own asynchronous copies: cp.async groups and TMA stores with their bulk groups
// (PTX ISA: cp.async, cp.async.bulk.tensor, and their commit_group and wait_group). Each lands when it is issued, when it is waited for, or at random.
#include <cstring>

#include "primitives.h"

namespace emu {

namespace {

void land_copy(Block& b, PendingCopy& c) {
  if (c.landed) return;
  c.landed = true;
  u8* dst = b.smem + c.dst;
  if (c.valid) {
    check_global(b, c.src, c.valid, 1, where_of(c.at));  // it may have been freed since the issue
    std::memcpy(dst, c.src, c.valid);
  }
  std::memset(dst + c.valid, 0, c.bytes - c.valid);
}

void land_store(Block& b, PendingStore& c) {
  if (c.landed) return;
  c.landed = true;
  for_each_tma_chunk(c.map, c.smem_src, c.coords, [](void* block, TmaRow row) {
    if (row.global) std::memcpy(row.global, static_cast<Block*>(block)->smem + row.smem, row.bytes);
  }, &b);
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

struct StoreAccess { Block* b; const PendingStore* c; u32 thread; int phase; };  // 0 issue, 1 smem read done, 2 landed

void race_store(Block& b, const PendingStore& c, u32 thread, int phase) {
  StoreAccess s{&b, &c, thread, phase};
  for_each_tma_chunk(c.map, c.smem_src, c.coords, [](void* arg, TmaRow row) {
    auto& x = *static_cast<StoreAccess*>(arg);
    const Where where = where_of(x.c->at);
    Block& block = *x.b;
    if (!row.global) return;
    if (x.phase == 0) {
      check_global(block, row.global, row.bytes, 1, where);
      if (!block.checked()) return;
      race_pend(block, block.smem + row.smem, row.bytes, {kAsync, where, x.thread}, x.c->token);
      race_pend(block, row.global, row.bytes, {kWrite | kAsync, where, x.thread}, x.c->token);
    } else if (block.checked()) {
      const void* p = x.phase == 1 ? block.smem + row.smem : row.global;
      race_land(block, p, row.bytes, x.c->token, x.thread, block.race.row(x.thread)[x.thread]);
    }
  }, &s);
}

}  // namespace

void cp_async(u32 dst, const void* src, u32 bytes, u32 valid, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  const Where where = where_of(at);
  if (dst % bytes) fail(Fault::misaligned, where, text("cp.async: shared address 0x%x is not %u-byte aligned", dst, bytes));
  u8* target = smem_at(b, dst, bytes, where);
  if (valid) check_global(b, src, bytes, bytes, where);
  PendingCopy c;
  c.dst = dst, c.src = static_cast<const u8*>(src), c.bytes = bytes, c.valid = valid, c.at = at;
  if (b.checked()) {
    c.token = b.next_token++;
    race_pend(b, target, bytes, {kWrite, where, f.id}, c.token);
    if (valid) race_pend(b, src, valid, {0, where, f.id}, c.token);
  }
  if (b.coin()) land_copy(b, c);
  f.copies.queue.push_back(c);
}

void cp_async_commit(Site) { me().copies.boundaries.push_back(me().copies.queue.size()); }

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
  smem_at(b, src, tma_box_bytes(c.map), where_of(at));
  if (b.checked()) c.token = b.next_token++;
  race_store(b, c, f.id, 0);
  if (b.coin()) land_store(b, c);
  f.stores.queue.push_back(c);
}

void tma_commit(Site) { me().stores.boundaries.push_back(me().stores.queue.size()); }

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
      if (!c.read_done) race_store(b, c, f.id, 1);
      c.read_done = true;
    }
    return;
  }
  complete_groups(f.stores, pending, [&](PendingStore& c) {
    land_store(b, c);
    if (!c.read_done) race_store(b, c, f.id, 1);
    race_store(b, c, f.id, 2);
  });
}

}  // namespace emu
