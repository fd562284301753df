#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

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

// Large memory shows one poisoned file again and again, private: it takes pages when it is written, as a pool of keys
// and values that a device has room for and a laptop has not.
static bool poison(u8* pages, size_t mapped) {
  constexpr size_t kPiece = size_t{16} << 20;
  if (mapped < 4 * kPiece) {
    std::memset(pages, 0xFF, mapped);
    return true;
  }
  static const int file = [] {
    const int fd = memfd_create("llmc-emulator-poison", MFD_CLOEXEC);
    const std::vector<u8> piece(kPiece, 0xFF);
    return fd >= 0 && write(fd, piece.data(), kPiece) == ssize_t(kPiece) ? fd : -1;
  }();
  for (size_t at = 0; at < mapped && file >= 0; at += kPiece) {
    void* p = mmap(pages + at, std::min(kPiece, mapped - at), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) return false;
  }
  return file >= 0;
}

u8* Memory::allocate(size_t bytes, u32 device, bool host) {
  const size_t mapped = round_up(std::max<size_t>(bytes, 1), 4096);
  if (!reserve_ || next_ + mapped + kGuard > kReserve) return nullptr;
  u8* pages = reserve_ + next_;
  if (mprotect(pages, mapped, PROT_READ | PROT_WRITE)) return nullptr;
  next_ += mapped + kGuard;
  // The allocation ends as near to the guard page as its 256-byte alignment allows.
  u8* base = pages + mapped - std::max<size_t>(round_up(bytes, 256), 256);
  if (!poison(pages, mapped)) return nullptr;
  by_base_[base] = Allocation{base, bytes, device, host, false, ++serial_};
  return base;
}

bool Memory::release(u8* p) {
  auto it = by_base_.find(p);
  if (it == by_base_.end() || it->second.freed) return false;
  it->second.freed = true;  // the range is never reused: a late access faults or is reported by name
  u8* pages = reinterpret_cast<u8*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{4095});
  const size_t mapped = round_up(size_t(p - pages) + std::max<size_t>(it->second.bytes, 1), 4096);
  mmap(pages, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
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
