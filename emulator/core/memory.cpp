#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace emu {

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

std::string text(const char* format, ...) {
  char buffer[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

std::string hex(const void* p) { return text("0x%zx", reinterpret_cast<size_t>(p)); }

Memory& Memory::instance() {
  static Memory* memory = new Memory;  // never destroyed: worker threads may outlive static destructors
  return *memory;
}

Memory::Memory() {
  void* p = mmap(nullptr, kReserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED) reserve_ = static_cast<u8*>(p);
}

u8* Memory::allocate(size_t bytes, u32 device, bool host) {
  const size_t mapped = round_up(std::max<size_t>(bytes, 1), 4096);
  if (!reserve_ || next_ + mapped + kGuard > kReserve) return nullptr;
  u8* pages = reserve_ + next_;
  if (mprotect(pages, mapped, PROT_READ | PROT_WRITE)) return nullptr;
  next_ += mapped + kGuard;
  // The allocation ends as near to the guard page as its 256-byte alignment allows.
  u8* base = pages + mapped - std::max<size_t>(round_up(bytes, 256), 256);
  if (bytes < (size_t{64} << 20)) std::memset(pages, 0xFF, mapped);
  else for (u8* p = pages; p < pages + mapped; p += size_t{16} << 20)
    std::memset(p, 0xFF, std::min<size_t>(size_t{16} << 20, size_t(pages + mapped - p)));
  by_base_[base] = Allocation{base, bytes, device, host, false, ++serial_};
  return base;
}

bool Memory::release(u8* p) {
  auto it = by_base_.find(p);
  if (it == by_base_.end() || it->second.freed) return false;
  it->second.freed = true;  // the range is never reused: a late access faults or is reported by name
  u8* pages = reinterpret_cast<u8*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{4095});
  const size_t mapped = round_up(size_t(p - pages) + std::max<size_t>(it->second.bytes, 1), 4096);
  madvise(pages, mapped, MADV_DONTNEED);
  mprotect(pages, mapped, PROT_NONE);
  return true;
}

const Allocation* Memory::find(const void* p) const {
  auto it = by_base_.upper_bound(static_cast<const u8*>(p));
  return it == by_base_.begin() ? nullptr : &std::prev(it)->second;
}

bool Memory::covers(const void* p, size_t bytes) const {
  const Allocation* a = find(p);
  return a && !a->freed && static_cast<const u8*>(p) + bytes <= a->base + a->bytes;
}

AccessProblem Memory::explain(const void* p) const {
  using Kind = AccessProblem::Kind;
  const Allocation* a = in_range(p) ? find(p) : nullptr;
  if (!a) return {Kind::illegal_address, "address " + hex(p) + " belongs to no device allocation"};
  const size_t offset = size_t(static_cast<const u8*>(p) - a->base);
  const char* state = a->freed ? "freed " : "";
  if (offset >= a->bytes)
    return {Kind::illegal_address, text("%zu bytes past the end of %sallocation #%lu of %zu bytes (out of bounds)",
                                        offset - a->bytes, state, a->serial, a->bytes)};
  if (a->freed)
    return {Kind::illegal_address, text("offset %zu of allocation #%lu of %zu bytes, which was freed (use after free)",
                                        offset, a->serial, a->bytes)};
  return {};
}

AccessProblem Memory::check(const void* p, size_t bytes, size_t alignment, u32 device) const {
  using Kind = AccessProblem::Kind;
  if (reinterpret_cast<uintptr_t>(p) % alignment)
    return {Kind::misaligned, text("%zu-byte access at %s is not aligned to %zu bytes", bytes, hex(p).c_str(),
                                   alignment)};
  const Allocation* a = in_range(p) ? find(p) : nullptr;
  const bool inside = a && !a->freed && static_cast<const u8*>(p) + bytes <= a->base + a->bytes;
  if (!inside) {
    AccessProblem problem = explain(p);
    if (problem.kind == Kind::none) problem = explain(static_cast<const u8*>(p) + bytes - 1);
    problem.text = text("%zu-byte access: ", bytes) + problem.text;
    return problem;
  }
  if (a->host || a->device == device) return {};
  if (std::find(peers_.begin(), peers_.end(), std::make_pair(device, a->device)) != peers_.end()) return {};
  return {Kind::illegal_address, text("device %u touches memory of device %u without peer access "
                                      "(cuCtxEnablePeerAccess)", device, a->device)};
}

void Memory::set_peer(u32 from, u32 to, bool enabled) {
  auto it = std::find(peers_.begin(), peers_.end(), std::make_pair(from, to));
  if (enabled && it == peers_.end()) peers_.emplace_back(from, to);
  if (!enabled && it != peers_.end()) peers_.erase(it);
}

size_t Memory::used(u32 device) const {
  size_t total = 0;
  for (auto& [base, a] : by_base_)
    if (!a.freed && !a.host && a.device == device) total += a.bytes;
  return total;
}

size_t Memory::live_allocations() const {
  size_t n = 0;
  for (auto& [base, a] : by_base_) n += !a.freed;
  return n;
}

}  // namespace emu
