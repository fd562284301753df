// memory.h - the device memory of every emulated device: one reserved address range, allocations with guard
// pages behind them, fresh bytes poisoned with 0xFF (a NaN in every float format, -1 as an integer).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "../include/llmc_emu/abi.h"

namespace emu {

struct Allocation {
  u8* base = nullptr;
  size_t bytes = 0;
  u32 device = 0;
  bool host = false;    // pinned host memory: every device may touch it
  bool freed = false;
  u64 serial = 0;       // 1, 2, ... in order of allocation; names the allocation in reports
};

// What is wrong with an access, in words; empty when nothing is.
struct AccessProblem {
  enum class Kind { none, illegal_address, misaligned } kind = Kind::none;
  std::string text;
};

class Memory {
 public:
  static Memory& instance();

  // nullptr when the address range is exhausted. Alignment 256 bytes, as cuMemAlloc promises.
  u8* allocate(size_t bytes, u32 device, bool host);
  // false when p is not the base of a live allocation.
  bool release(u8* p);
  const Allocation* find(const void* p) const;  // live or freed allocation (or its guard) that p falls into
  bool covers(const void* p, size_t bytes) const;
  bool in_range(const void* p) const { return p >= reserve_ && p < reserve_ + kReserve; }
  // Checks bounds, liveness, peer access and natural alignment of an access of `bytes` by device `device`.
  AccessProblem check(const void* p, size_t bytes, size_t alignment, u32 device) const;
  AccessProblem explain(const void* p) const;  // of an address that faulted
  void set_peer(u32 from, u32 to, bool enabled);
  size_t used(u32 device) const;
  size_t live_allocations() const;

 private:
  Memory();
  static constexpr size_t kReserve = size_t{1} << 42;
  static constexpr size_t kGuard = size_t{64} << 10;
  u8* reserve_ = nullptr;
  size_t next_ = 0;
  u64 serial_ = 0;
  std::map<const u8*, Allocation> by_base_;
  std::vector<std::pair<u32, u32>> peers_;
};

std::string hex(const void* p);
// printf into a string.
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emu
