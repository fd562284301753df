// faults.cpp - a wild address, a trap or an overflow of its stack in a fiber becomes the block's failure.
#include "faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <mutex>

namespace emu {

namespace {

constexpr u64 kCanary = 0x6c6c6d63656d7521ull;
constexpr size_t kGuardBytes = 4096;
// A guard page splits a mapping, of which Linux gives a process 65,530: with many workers, some stacks get a canary.
constexpr u32 kMaxGuards = 16384;

thread_local Block* running = nullptr;  // the block this OS thread executes fibers of
thread_local const u8* faulting_address = nullptr;
thread_local const void* faulting_pc = nullptr;
thread_local bool faulting_trap = false;
thread_local bool faulting_alignment = false;  // x86 answers a misaligned vector access with #GP, without address
struct sigaction previous_segv, previous_bus, previous_ill;

// The lowest words of a stack without a guard page, staggered as the headers are.
u64& canary_of(u8* stack) { return *reinterpret_cast<u64*>(stack + reinterpret_cast<uintptr_t>(stack) / kStackBytes % 64 * 64); }

[[noreturn]] void overflowed(Where where) {
  fail(Fault::misuse, where, text("thread overflowed its %zu KiB fiber stack", kStackBytes >> 10));
}

[[noreturn]] void after_fault() {  // runs on the faulting fiber's stack, outside the signal handler
  const Where where = where_of(static_cast<const u8*>(faulting_pc) + 1);
  if (faulting_trap) fail(Fault::misuse, where, "index beyond the end of a local array");
  if (faulting_alignment) fail(Fault::misaligned, where, "misaligned address: a vector access is not aligned to its size");
  const AccessProblem problem = Memory::instance().explain(faulting_address);
  fail(Fault::illegal_address, where,
       "illegal memory access: " + (problem.text.empty() ? "address " + hex(faulting_address) : problem.text));
}

[[noreturn]] void after_overflow() { overflowed(where_of(static_cast<const u8*>(faulting_pc) + 1)); }

void on_fault(int signal, siginfo_t* info, void* context) {
  auto* u = static_cast<ucontext_t*>(context);
  const auto sp = static_cast<uintptr_t>(u->uc_mcontext.gregs[REG_RSP]);
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  auto in_stacks = [](uintptr_t p) {
    return running && p - reinterpret_cast<uintptr_t>(running->stacks) < kMaxThreads * kStackBytes;
  };
  const bool overflow = signal == SIGSEGV && in_stacks(address) && address % kStackBytes < kGuardBytes;
  if (overflow || in_stacks(sp)) {
    faulting_trap = signal == SIGILL;
    faulting_alignment = !faulting_trap && info->si_code == SI_KERNEL;
    faulting_address = static_cast<const u8*>(info->si_addr);
    faulting_pc = reinterpret_cast<const void*>(u->uc_mcontext.gregs[REG_RIP]);
    const uintptr_t top = overflow ? header_of(address) : sp;  // a full stack is begun anew: its frames are dead
    u->uc_mcontext.gregs[REG_RSP] = greg_t(((top - 1024) & ~uintptr_t{15}) - 8);
    u->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(overflow ? &after_overflow : &after_fault);
    return;
  }
  const struct sigaction& old = signal == SIGSEGV ? previous_segv : signal == SIGBUS ? previous_bus : previous_ill;
  if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(signal, info, context);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
  ::signal(signal, SIG_DFL);  // not ours: let the process die where it stands
}

// The handler cannot run on a stack that is full. A thread that has another stack for signals keeps it.
void use_signal_stack() {
  constexpr size_t kBytes = size_t{64} << 10;
  static thread_local const std::unique_ptr<u8[]> memory(new u8[kBytes]);
  stack_t current{};
  if (sigaltstack(nullptr, &current) || !(current.ss_flags & SS_DISABLE)) return;
  stack_t ours{};
  ours.ss_sp = memory.get();
  ours.ss_size = kBytes;
  sigaltstack(&ours, nullptr);
}

}  // namespace

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous_segv);
    sigaction(SIGBUS, &action, &previous_bus);
    sigaction(SIGILL, &action, &previous_ill);  // compilers' traps
  });
}

void enter_block(Block& b) {
  static std::atomic<u32> guards{0};
  for (; b.guarded < b.n && guards < kMaxGuards; b.guarded++, guards++)
    if (mprotect(b.stacks + b.guarded * kStackBytes, kGuardBytes, PROT_NONE)) break;
  for (u32 t = b.guarded; t < b.n; t++) canary_of(b.stacks + t * kStackBytes) = kCanary;
  use_signal_stack();
  running = &b;
}

void leave_faults_to_others() { running = nullptr; }

void check_stack(Fiber& f) {
  Block& b = *f.block;
  if (f.id >= b.guarded && canary_of(b.stacks + f.id * kStackBytes) != kCanary) overflowed(where_of(f.at));
}

}  // namespace emu
