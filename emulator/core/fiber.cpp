// fiber.cpp - stacks, context switches, the three schedules and deadlock reports.
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "faults.h"
#include "primitives.h"

// void emu_switch(void** save, void* to): saves the callee-saved registers of the System V x86-64 ABI.
extern "C" void emu_switch(void** save, void* to);
asm(R"(
.text
.hidden emu_switch
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");

namespace emu {

namespace {

[[noreturn]] void leave_block(Block& b) {
  void* ignored;
  emu_switch(&ignored, b.main_stack_pointer);
  __builtin_unreachable();
}

std::string position(const Block& b, const Fiber& f) {
  return text("%s: block (%u,%u,%u) thread (%u,%u,%u)", b.launch->kernel->name, b.index.x, b.index.y, b.index.z,
              f.tid.x, f.tid.y, f.tid.z);
}

// Every distinct wait, how many threads are in it, and which one is first.
[[noreturn]] void report_deadlock(Block& b) {
  struct Group { const char* in; u32 line; u32 count, first; Site at; };
  std::vector<Group> groups;
  u32 exited = 0;
  for (u32 t = 0; t < b.n; t++) {
    const Fiber& f = *b.fibers[t];
    if (f.done) { exited++; continue; }
    bool known = false;
    for (Group& g : groups)
      if (g.in == f.waiting_in && g.line == f.at.line) g.count++, known = true;
    if (!known) groups.push_back({f.waiting_in, f.at.line, 1, t, f.at});
  }
  std::string message = "deadlock (divergent barrier, missing arrival or wait that never completes): ";
  for (size_t i = 0; i < groups.size() && i < 6; i++)
    message += text("%s%u threads (first: %u) wait in %s at %s", i ? "; " : "", groups[i].count, groups[i].first,
                    groups[i].in, describe(where_of(groups[i].at)).c_str());
  message += text("; %u of %u threads have exited", exited, b.n);
  const Fiber& first = *b.fibers[groups.empty() ? 0 : groups[0].first];
  b.failure = {Fault::deadlock, position(b, first) + " at " + describe(where_of(first.at)) + ": " + message};
  leave_block(b);
}

// Now and then one out of turn: threads that poll, with a warp's barrier in their loop, would hold up for ever the one
// they wait for, where those woken last go first.
constexpr u32 kOutOfTurn = 4096;

inline Fiber* pick(Block& b) {
  while (true) {
    if (++b.picks % kOutOfTurn == 0 && !b.ready.empty()) return b.fibers[b.ready.take(u32(b.random() % b.ready.size()))];
    if (b.mode() == Mode::forward && !b.ready.empty()) return b.fibers[b.ready.take_first()];
    if (b.mode() == Mode::random && !b.loads.empty() && (b.random() & 7) == 0) land_one_load(b);
    if (!b.ready.empty())
      return b.fibers[b.ready.take(b.mode() == Mode::reverse ? b.ready.size() - 1 : u32(b.random() % b.ready.size()))];
    if (!land_one_load(b)) return nullptr;  // asynchronous work lands as late as this
  }
}

// Shared memory may be given to another block as soon as this one is gone.
void check_nothing_in_flight(Fiber& f) {
  Block& b = *f.block;
  for (size_t i = f.stores.first; i < f.stores.queue.size(); i++)
    if (!f.stores.queue[i].read_done)
      misuse(f.stores.queue[i].at, "thread exits while its TMA store may still read shared memory (tma_wait_read is missing)");
  if (!f.in_flight.empty())
    misuse(f.in_flight.front().at, "thread exits while a wgmma is in flight (wgmma_wait is missing)");
  if (!f.copies.empty())  // PTX does not say what becomes of it
    misuse(f.copies.queue[f.copies.first].at, "thread exits while its cp.async is in flight (cp_async_wait is missing)");
  if (b.live > 1) return;
  if (!b.loads.empty()) misuse(b.loads.front().at, "block exits while a TMA load into its shared memory is in flight");
  for (Warpgroup& g : b.warpgroups) {
    if (g.done < g.begun) {
      const Collective& c = g.ring[g.done & g.mask];
      misuse(c.at, text("block exits while %u of 128 threads have arrived at %s: divergent warpgroup", c.arrived, c.name));
    }
  }
}

void fiber_main() {
  Fiber& f = me();
  Block& b = *f.block;
  b.launch->kernel->invoke(b.launch->params);
  check_stack(f);
  check_nothing_in_flight(f);
  f.done = true;
  if (--b.live == 0) leave_block(b);
  Fiber* next = pick(b);
  if (!next) report_deadlock(b);
  void* ignored;
  emu_switch(&ignored, next->stack_pointer);
  __builtin_unreachable();
}

}  // namespace

void fail(Fault fault, Where where, const std::string& message) {
  Fiber& f = me();
  Block& b = *f.block;
  b.failure = {fault, position(b, f) + " at " + describe(where) + ": " + message};
  leave_block(b);
}

void wake(Block& block, u32 thread) {
  block.fibers[thread]->waiting_in = nullptr;
  block.ready.add(thread);
}

void wake_warp(Block& b, u32 warp, u32 lanes) {
  for (u32 l = 32; l--;) {
    if (!(lanes >> l & 1)) continue;
    const u32 thread = warp * 32 + l;
    b.fibers[thread]->waiting_in = nullptr;
    if (b.mode() == Mode::forward) b.ready.add_first(thread);
    else b.ready.add(thread);
  }
}

void block_here(const char* waiting_in, Site at) {
  Fiber& f = me();
  Block& b = *f.block;
  f.waiting_in = waiting_in;
  f.at = at;
  Fiber* next = pick(b);
  if (next == &f) return;
  if (!next) report_deadlock(b);
  emu_switch(&f.stack_pointer, next->stack_pointer);
}

Block& worker_block() {
  static thread_local std::unique_ptr<Block> block;
  if (!block) {
    block = std::make_unique<Block>();
    auto map = [](size_t bytes, size_t align) {
      void* p = mmap(nullptr, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      return reinterpret_cast<u8*>((reinterpret_cast<uintptr_t>(p) + align - 1) / align * align);
    };
    block->stacks = map(kMaxThreads * kStackBytes, kStackBytes);
    block->smem = map(kMaxSmem + 4096, 1024);  // mapped once per OS thread, for the life of the process
  }
  return *block;
}

void run_block(Block& b, const LaunchInfo& launch, Dim3 index) {
  b.launch = &launch;
  b.index = index;
  b.n = b.live = launch.block.x * launch.block.y * launch.block.z;
  b.rng = (launch.schedule.seed + 1) * 0x9E3779B97F4A7C15ull + index.x * 77 + index.y * 7919 + index.z * 104729;
  b.ready.clear();
  b.picks = 0;
  b.failure = {};
  b.loads.clear();
  b.mbarriers.clear();
  b.layouts.clear();
  b.waited_for_grid = false;
  for (u32 w = 0; w < (b.n + 31) / 32; w++) b.warps[w] = Warp{};
  for (Barrier& bar : b.barriers) bar = Barrier{};
  const u32 regs = launch.regs_per_thread ? (launch.regs_per_thread + 7) / 8 * 8
                                          : std::min(255u, 65536u / std::max(b.n, 1u)) / 8 * 8;
  for (Warpgroup& g : b.warpgroups) g.reset(0);
  for (u32 g = 0; g < (b.n + 127) / 128; g++) b.warpgroups[g].regs = regs;
  b.free_regs = 0;
  std::memset(b.smem, 0xFF, launch.smem_bytes);
  for (u32 t = 0; t < b.n; t++) {
    u8* base = b.stacks + size_t(t) * kStackBytes;
    CopyGroups<PendingCopy> copies;  // keeps its memory from block to block
    if (b.fibers[t]) {
      copies = std::move(b.fibers[t]->copies);
      copies.clear();
      b.fibers[t]->~Fiber();
    }
    Fiber* f = new (reinterpret_cast<void*>(header_of(reinterpret_cast<uintptr_t>(base)))) Fiber;
    f->copies = std::move(copies);
    b.fibers[t] = f;
    f->tid = {t % launch.block.x, t / launch.block.x % launch.block.y, t / (launch.block.x * launch.block.y)};
    f->bid = index;
    f->bdim = launch.block;
    f->gdim = launch.grid;
    f->smem = b.smem;
    f->id = t;
    f->lane = t & 31;
    f->warp = t >> 5;
    f->block = &b;
    f->group = t / 128 * 128 + 128 <= b.n ? &b.warpgroups[t / 128] : nullptr;
    auto** sp = reinterpret_cast<void**>(f);
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    f->stack_pointer = sp;
    b.ready.add(t);
  }
  if (launch.checked) race_begin_block(b);
  enter_block(b);
  Fiber* first = pick(b);
  emu_switch(&b.main_stack_pointer, first->stack_pointer);
  leave_faults_to_others();
}

void fail_shared(const Block& b, u32 offset, size_t bytes, Where where) {
  fail(Fault::illegal_address, where,
       text("shared memory access out of bounds: offset %u + %zu bytes > %zu bytes of dynamic shared memory", offset, bytes,
            b.launch->smem_bytes));
}

}  // namespace emu
