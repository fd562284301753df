#include "race.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "block.h"
#include "memory.h"

namespace emu {

namespace {

struct Agent { const Op* op; Dim3 block; };
std::deque<Agent>& agents() {
  static auto* v = new std::deque<Agent>{{nullptr, {}}};
  return *v;
}

// Shadow of global memory: pages of 4 KiB, made when first touched.
struct ShadowPage { Granule granules[512]; };
std::unordered_map<uintptr_t, std::unique_ptr<ShadowPage>>& pages() {
  static auto* map = new std::unordered_map<uintptr_t, std::unique_ptr<ShadowPage>>;
  return *map;
}
std::unordered_map<const void*, std::shared_ptr<Knowledge>>& sync_variables() {
  static auto* map = new std::unordered_map<const void*, std::shared_ptr<Knowledge>>;
  return *map;
}

struct { uintptr_t number; ShadowPage* page; } latest;

Granule& global_granule(uintptr_t address) {
  const uintptr_t number = address >> 12;
  if (number != latest.number || !latest.page) {
    auto& page = pages()[number];
    if (!page) page = std::make_unique<ShadowPage>();
    latest = {number, page.get()};
  }
  return latest.page->granules[(address & 4095) >> 3];
}

struct Accessor {
  const Op* op;
  u32 agent;
  Block* block;  // null for copies by the driver
  u32 thread;
  const u32* row() const { return block ? block->race.row(thread) : nullptr; }
};

bool in_pdl_chain(const Op* earlier, const Op* later) {
  for (const Op* p = later->primary; p; p = p->primary)
    if (p == earlier) return true;
  return false;
}

bool ordered(const Slot& s, const Accessor& a) {
  if (s.agent == a.agent) {
    if (!a.block) return true;
    if (s.thread < kWarpgroup) return a.row()[s.thread] >= s.clock;
    const u32 group = s.thread - kWarpgroup;
    const auto& lead = a.block->race.wgmma_waits[group][s.clock];
    for (u32 w = 0; w < 4; w++)
      if (a.row()[group * 128 + w * 32] < lead[w]) return false;
    return true;
  }
  const Agent& other = agents()[s.agent];
  if (other.op == a.op) {  // another block of the same grid: only atomics order them
    if (!a.block) return true;
    for (const Acquired& q : a.block->race.acquired) {
      if (a.row()[q.thread] < q.clock) continue;
      auto it = q.what->of_agent.find(s.agent);
      if (it != q.what->of_agent.end() && s.thread < it->second.size() && it->second[s.thread] >= s.clock) return true;
    }
    return false;
  }
  if (!other.op->before(*a.op)) return false;
  if (!a.block || !in_pdl_chain(other.op, a.op)) return true;
  for (auto [thread, clock] : a.block->race.grid_waits)
    if (a.row()[thread] >= clock) return true;
  return false;
}

// The async proxy sees a generic write only behind the writer's fence.proxy.async (PTX ISA, memory consistency model: proxies).
bool proxy_fenced(const Slot& s, const Accessor& a) {
  if (s.agent != a.agent || !a.block || s.thread >= a.block->n) return true;
  const auto& fences = a.block->fibers[s.thread]->proxy_fences;
  auto it = std::lower_bound(fences.begin(), fences.end(), s.clock);
  return it != fences.end() && a.row()[s.thread] > *it;
}

std::string who(const Slot& s, const Accessor& a) {
  const Agent& other = agents()[s.agent];
  std::string t = s.thread >= kWarpgroup ? text("warpgroup %u", s.thread - kWarpgroup)
                  : a.block && s.thread >= a.block->n && s.agent == a.agent ? std::string("a TMA load")
                                                                            : text("thread %u", s.thread);
  if (s.agent == a.agent) return t;
  if (other.op == a.op) return t + text(" of block (%u,%u,%u)", other.block.x, other.block.y, other.block.z);
  return t + text(" of block (%u,%u,%u) of %s", other.block.x, other.block.y, other.block.z, other.op->name.c_str());
}

std::string race_text(const char* space, u64 offset, const Slot& s, const Accessor& a, u8 flags, Where where, bool proxy) {
  const char* kind = flags & kWrite ? "write" : "read";
  const char* before = s.flags & kWrite ? "write" : "read";
  const char* pending = s.flags & kPending ? " asynchronous" : "";
  std::string message = text("race on %s memory at +0x%lx: %s at %s by ", space, offset, kind, describe(where).c_str());
  message += a.block ? text("thread %u", a.thread) : a.op->name;
  if (proxy)
    message += text(" through the async proxy is not ordered by fence.proxy.async after the generic %s at %s by ",
                    before, describe(s.where).c_str());
  else if (s.flags & kPending)
    message += text(" overlaps the%s %s issued at %s, still in flight, by ", pending, before, describe(s.where).c_str());
  else
    message += text(" is not ordered after the %s at %s by ", before, describe(s.where).c_str());
  return message + who(s, a);
}

void insert(Granule& g, const Slot& fresh) {
  for (u32 i = 0; i < g.used; i++) {
    Slot& s = g.slots[i];
    if (s.agent == fresh.agent && s.thread == fresh.thread && s.clock == fresh.clock && s.flags == fresh.flags &&
        s.where == fresh.where) {
      s.mask |= fresh.mask;
      return;
    }
  }
  if (g.used < kSlots) { g.slots[g.used++] = fresh; return; }
  // Full: forget a completed read if there is one (a later racing write may then go unnoticed).
  for (u32 k = 0; k < kSlots; k++) {
    const u32 i = (g.next_victim + k) % kSlots;
    if (!(g.slots[i].flags & (kWrite | kPending))) { g.next_victim = u8(i + 1) % kSlots; g.slots[i] = fresh; return; }
  }
  g.slots[g.next_victim] = fresh;
  g.next_victim = u8((g.next_victim + 1) % kSlots);
}

// Returns the conflicting slot, or null after recording the access.
const Slot* touch(Granule& g, u8 mask, const Accessor& a, u8 flags, Where where, u32 clock, bool* proxy) {
  const bool write = flags & kWrite;
  u32 kept = 0;
  for (u32 i = 0; i < g.used; i++) {
    Slot s = g.slots[i];
    const u8 overlap = s.mask & mask;
    if (overlap && (write || (s.flags & kWrite)) && !((s.flags & kAtomic) && (flags & kAtomic))) {
      *proxy = false;
      // Asynchronous operations of one group on the same bytes (wgmma after wgmma) only read.
      if ((s.flags & kPending) || !ordered(s, a)) return &g.slots[i];
      if ((flags & kAsync) && (s.flags & kWrite) && !(s.flags & kAsync) && !proxy_fenced(s, a)) {
        *proxy = true;
        return &g.slots[i];
      }
    }
    // What the new access is ordered behind, it stands for from now on.
    const bool superseded = overlap && !(s.flags & kPending) && (write || !(s.flags & kWrite)) &&
                            !(flags & kPending) && (flags & kAtomic) == (s.flags & kAtomic) && ordered(s, a);
    if (superseded) s.mask &= ~mask;
    if (s.mask) g.slots[kept++] = s;
  }
  g.used = u8(kept);
  insert(g, Slot{a.agent, clock, u16(a.thread), mask, flags, where});
  if (write) g.init |= mask;
  return nullptr;
}

template <class F>
void each_granule(Block* b, const void* p, size_t bytes, F&& f) {
  auto address = reinterpret_cast<uintptr_t>(p);
  const uintptr_t end = address + bytes, smem = b ? reinterpret_cast<uintptr_t>(b->smem) : 0;
  const bool shared = b && address - smem < kMaxSmem;
  while (address < end) {
    const uintptr_t next = std::min(end, (address | 7) + 1);
    const u8 mask = u8((0xffu >> (8 - (next - address))) << (address & 7));
    f(shared ? b->race.smem[(address - smem) >> 3] : global_granule(address), mask, address);
    address = next;
  }
}

struct Spot { const char* space; u64 offset; };
Spot spot(Block* b, uintptr_t address) {
  if (b && address - reinterpret_cast<uintptr_t>(b->smem) < kMaxSmem)
    return {"shared", address - reinterpret_cast<uintptr_t>(b->smem)};
  const Allocation* a = Memory::instance().find(reinterpret_cast<const void*>(address));
  return {"global", a ? address - reinterpret_cast<uintptr_t>(a->base) : address};
}

Accessor accessor(Block& b, u32 thread) { return {b.launch->op, b.race.agent, &b, thread}; }

void record(Block& b, const void* p, size_t bytes, AccessInfo info, u32 clock) {
  const Accessor a = accessor(b, info.thread);
  each_granule(&b, p, bytes, [&](Granule& g, u8 mask, uintptr_t address) {
    bool proxy = false;
    if (g.sync & mask)
      fail(Fault::misuse, info.where, "plain access to the bytes of a live mbarrier");
    if (!(info.flags & kWrite) && (g.init & mask) != mask) {
      const Spot at = spot(&b, address);
      fail(Fault::race, info.where, text("uninitialised read: %zu bytes of %s memory at +0x%lx were never written",
                                         bytes, at.space, at.offset));
    }
    if (const Slot* conflict = touch(g, mask, a, info.flags, info.where, clock, &proxy)) {
      const Spot at = spot(&b, address);
      fail(Fault::race, info.where, race_text(at.space, at.offset, *conflict, a, info.flags, info.where, proxy));
    }
  });
}

}  // namespace

u32 new_agent(const Op* op, Dim3 block_index) {
  agents().push_back({op, block_index});
  return u32(agents().size() - 1);
}

void race_begin_block(Block& b) {
  RaceState& r = b.race;
  r.agent = new_agent(b.launch->op, b.index);
  r.stride = (b.n + kPseudoThreads + 15) / 16 * 16;
  r.clocks.assign(size_t(b.n) * r.stride, 0);
  for (u32 t = 0; t < b.n; t++) r.row(t)[t] = 1;
  r.smem.assign((b.launch->smem_bytes + 7) / 8 + 1, Granule{});
  r.acquired.clear();
  r.grid_waits.clear();
  for (auto& waits : r.wgmma_waits) waits.clear();
}

void race_access(Block& b, const void* p, size_t bytes, AccessInfo info) {
  record(b, p, bytes, info, b.race.row(info.thread)[info.thread]);
}

void race_pend(Block& b, const void* p, size_t bytes, AccessInfo info, u32 token) {
  info.flags |= kPending;
  record(b, p, bytes, info, token);
}

void race_land(Block& b, const void* p, size_t bytes, u32 token, u32 thread, u32 clock) {
  each_granule(&b, p, bytes, [&](Granule& g, u8 mask, uintptr_t) {
    for (u32 i = 0; i < g.used; i++) {
      Slot& s = g.slots[i];
      if (!(s.flags & kPending) || s.clock != token || s.agent != b.race.agent || !(s.mask & mask)) continue;
      s.flags &= ~kPending;
      s.thread = u16(thread);
      s.clock = clock;
    }
  });
}

void race_mark_sync(Block& b, u32 offset, u32 bytes, bool on) {
  each_granule(&b, b.smem + offset, bytes, [&](Granule& g, u8 mask, uintptr_t) {
    g.sync = on ? g.sync | mask : g.sync & ~mask;
  });
}

void clock_join(u32* into, const u32* from, u32 n) {
  for (u32 i = 0; i < n; i++) into[i] = into[i] > from[i] ? into[i] : from[i];
}
void clock_join(Clock& into, const u32* from, u32 n) {
  if (into.size() < n) into.resize(n, 0);
  clock_join(into.data(), from, n);
}
void clock_tick(Block& b, u32 thread) { b.race.row(thread)[thread]++; }

std::shared_ptr<Knowledge> release_knowledge(Block& b, u32 thread) {
  auto k = std::make_shared<Knowledge>();
  const u32* row = b.race.row(thread);
  for (const Acquired& q : b.race.acquired)
    if (row[q.thread] >= q.clock)
      for (auto& [agent, clock] : q.what->of_agent) clock_join(k->of_agent[agent], clock.data(), u32(clock.size()));
  k->of_agent[b.race.agent].assign(row, row + b.race.stride);
  return k;
}

void sync_release(const void* address, const std::shared_ptr<Knowledge>& knowledge) {
  auto& variable = sync_variables()[address];
  auto merged = variable ? std::make_shared<Knowledge>(*variable) : std::make_shared<Knowledge>();
  for (auto& [agent, clock] : knowledge->of_agent) clock_join(merged->of_agent[agent], clock.data(), u32(clock.size()));
  variable = merged;
}

std::shared_ptr<Knowledge> sync_read(const void* address) {
  auto it = sync_variables().find(address);
  return it == sync_variables().end() ? nullptr : it->second;
}

void acquire(Block& b, u32 thread, std::shared_ptr<Knowledge> knowledge) {
  if (!knowledge) return;
  // Clocks of this very block join directly; those of other blocks are kept aside.
  if (auto it = knowledge->of_agent.find(b.race.agent); it != knowledge->of_agent.end())
    clock_join(b.race.row(thread), it->second.data(), std::min(b.race.stride, u32(it->second.size())));
  clock_tick(b, thread);
  b.race.acquired.push_back({thread, b.race.row(thread)[thread], std::move(knowledge)});
}

static Failure touch_all(const Accessor& a, const void* p, size_t bytes, bool write) {
  Failure failure;
  each_granule(nullptr, p, bytes, [&](Granule& g, u8 mask, uintptr_t address) {
    if (failure.fault != Fault::none) return;
    bool proxy = false;
    if (const Slot* conflict = touch(g, mask, a, write ? kWrite : 0, 0, 1, &proxy)) {
      const Spot at = spot(nullptr, address);
      failure = {Fault::race, a.op->name + ": " + race_text(at.space, at.offset, *conflict, a, write ? kWrite : 0, 0, false)};
    }
  });
  return failure;
}

Failure race_copy(const Op& op, const void* p, size_t bytes, bool write) {
  return touch_all({&op, new_agent(&op, {}), nullptr, 0}, p, bytes, write);
}

Failure race_free(const Op& op, const void* p, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(p);
  const Accessor a{&op, new_agent(&op, {}), nullptr, 0};
  for (uintptr_t number = begin >> 12; bytes && number <= (begin + bytes - 1) >> 12; number++) {
    if (!pages().count(number)) continue;  // nobody has touched it, and a shadow is 16 times as large
    const Failure failure = touch_all(a, reinterpret_cast<const void*>(number << 12), 4096, true);
    if (failure.fault != Fault::none) return failure;
    pages().erase(number);
    latest = {};
  }
  return {};
}

void race_reset() {
  for (auto& [number, page] : pages())
    for (Granule& g : page->granules) g.used = 0;
  sync_variables().clear();
}

}  // namespace emu
