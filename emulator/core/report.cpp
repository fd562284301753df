#include "report.h"

#include <mutex>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace emu {

namespace {
struct Place {
  const char* file;  // null: a program counter
  u64 line_or_pc;
};
std::mutex mutex;
std::vector<Place>& places() {
  static auto* v = new std::vector<Place>{{nullptr, 0}};
  return *v;
}
Where intern(const char* file, u64 line_or_pc) {
  static auto* ids = new std::unordered_map<u64, Where>;
  std::lock_guard lock(mutex);
  const u64 key = line_or_pc * 0x9E3779B97F4A7C15ull ^ reinterpret_cast<u64>(file);
  auto [it, fresh] = ids->try_emplace(key, Where(places().size()));
  if (fresh) places().push_back({file, line_or_pc});
  return it->second;
}
std::string basename(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}
}  // namespace

// Both lookups are hot in checked twins: a small direct-mapped cache in front of the table.
Where where_of(Site at) {
  struct Entry { const char* file; u32 line; Where id; };
  static thread_local Entry cache[256];
  Entry& e = cache[(at.line ^ reinterpret_cast<uintptr_t>(at.file) >> 4) & 255];
  if (e.file != at.file || e.line != at.line) e = {at.file, at.line, intern(at.file, at.line)};
  return e.id;
}

Where where_of(const void* pc) {
  struct Entry { const void* pc; Where id; };
  static thread_local Entry cache[1024];
  Entry& e = cache[(reinterpret_cast<uintptr_t>(pc) >> 1) & 1023];
  if (e.pc != pc) e = {pc, intern(nullptr, reinterpret_cast<u64>(pc))};
  return e.id;
}

std::string describe(Where where) {
  if (!where) return "the host";
  Place place;
  {
    std::lock_guard lock(mutex);
    place = places()[where];
  }
  if (place.file) return basename(place.file) + text(":%lu", place.line_or_pc);
  const auto* pc = reinterpret_cast<const void*>(place.line_or_pc);
  const std::string line = source_line(pc);
  return line.empty() ? "pc " + hex(pc) : basename(line);
}

}  // namespace emu
