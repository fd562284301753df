// lines.cpp - program counter to "file:line": reads the DWARF 4 line table (.debug_line) of the shared
// object that holds the address (twins are built with -gdwarf-4). DWARF 4 standard, section 6.2.
#include <dlfcn.h>
#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "memory.h"
#include "report.h"

namespace emu {
namespace {

struct Row { u64 address; u32 file; u32 line; bool end; };

class Cursor {
 public:
  Cursor(const u8* p, const u8* end) : p_(p), end_(end) {}
  bool more() const { return p_ < end_; }
  const u8* at() const { return p_; }
  template <class T> T fixed() { T v{}; if (p_ + sizeof(T) <= end_) std::memcpy(&v, p_, sizeof(T)); p_ += sizeof(T); return v; }
  u64 uleb() { u64 v = 0; for (int s = 0; p_ < end_; s += 7) { const u8 b = *p_++; v |= u64(b & 127) << s; if (!(b & 128)) break; } return v; }
  i64 sleb() {
    i64 v = 0; int s = 0; u8 b = 0;
    do { b = fixed<u8>(); v |= i64(b & 127) << s; s += 7; } while ((b & 128) && more());
    return s < 64 && (b & 64) ? v | -(i64{1} << s) : v;
  }
  std::string string() { std::string s; while (p_ < end_ && *p_) s += char(*p_++); p_++; return s; }
  void jump(const u8* p) { p_ = p; }
 private:
  const u8 *p_, *end_;
};

// One unit of the table: returns "file:line" if it covers `address`. Advances the cursor past the unit.
std::string search_unit(Cursor& c, const u8* end, u64 address) {
  const u32 length = c.fixed<u32>();
  if (length >= 0xfffffff0u || c.at() + length > end) { c.jump(end); return ""; }
  const u8* unit_end = c.at() + length;
  Cursor u(c.at(), unit_end);
  c.jump(unit_end);
  const u16 version = u.fixed<u16>();
  if (version < 2 || version > 4) return "";
  const u32 header = u.fixed<u32>();
  const u8* program = u.at() + header;
  const u8 min_inst = u.fixed<u8>();
  if (version >= 4) u.fixed<u8>();
  u.fixed<u8>();
  const auto line_base = static_cast<signed char>(u.fixed<u8>());
  const u8 line_range = u.fixed<u8>(), opcode_base = u.fixed<u8>();
  std::vector<u8> lengths(opcode_base);
  for (u8 i = 1; i < opcode_base; i++) lengths[i] = u.fixed<u8>();
  while (u.more() && *u.at()) u.string();
  u.fixed<u8>();
  std::vector<std::string> files{""};
  while (u.more() && *u.at()) { files.push_back(u.string()); u.uleb(); u.uleb(); u.uleb(); }
  u.jump(program);

  Row row{0, 1, 1, false}, previous{};
  std::string found;
  auto emit = [&](bool is_end) {
    if (previous.address && !previous.end && previous.address <= address && address < row.address &&
        previous.file < files.size() && previous.line)
      found = files[previous.file] + text(":%u", previous.line);
    const Row known = previous;
    previous = row;
    if (!row.line && !known.end) previous.line = known.line, previous.file = known.file;  // compiler-made code
    previous.end = is_end;
  };
  while (u.more()) {
    const u8 op = u.fixed<u8>();
    if (op >= opcode_base) {
      const u8 adjusted = op - opcode_base;
      row.address += u64(adjusted / line_range) * min_inst;
      row.line += line_base + adjusted % line_range;
      emit(false);
    } else if (op == 0) {
      const u64 n = u.uleb();
      const u8* next = u.at() + n;
      const u8 extended = u.fixed<u8>();
      if (extended == 1) { emit(true); row = Row{0, 1, 1, false}; }
      if (extended == 2) row.address = u.fixed<u64>();
      u.jump(next);
    } else switch (op) {
      case 1: emit(false); break;
      case 2: row.address += u.uleb() * min_inst; break;
      case 3: row.line += u32(u.sleb()); break;
      case 4: row.file = u32(u.uleb()); break;
      case 8: row.address += u64((255 - opcode_base) / line_range) * min_inst; break;
      case 9: row.address += u.fixed<u16>(); break;
      default: for (u8 i = 0; i < lengths[op]; i++) u.uleb();
    }
  }
  return found;
}

struct Image { std::vector<u8> bytes; size_t offset = 0, size = 0; };

const Image& load(const std::string& path) {
  static auto* images = new std::map<std::string, Image>;
  auto [it, fresh] = images->try_emplace(path);
  Image& image = it->second;
  if (!fresh) return image;
  std::ifstream in(path, std::ios::binary);
  image.bytes.assign(std::istreambuf_iterator<char>(in), {});
  if (image.bytes.size() < sizeof(Elf64_Ehdr)) return image;
  const auto* head = reinterpret_cast<const Elf64_Ehdr*>(image.bytes.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image.bytes.data() + head->e_shoff);
  const char* names = reinterpret_cast<const char*>(image.bytes.data()) + sections[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++)
    if (!std::strcmp(names + sections[i].sh_name, ".debug_line") && !(sections[i].sh_flags & SHF_COMPRESSED))
      image.offset = sections[i].sh_offset, image.size = sections[i].sh_size;
  return image;
}

}  // namespace

std::string source_line(const void* pc) {
  Dl_info info;
  if (!dladdr(pc, &info) || !info.dli_fname) return "";
  const Image& image = load(info.dli_fname);
  if (!image.size) return "";
  // A return address points behind the call: look up the byte before it.
  const u64 address = u64(static_cast<const u8*>(pc) - static_cast<const u8*>(info.dli_fbase)) - 1;
  const u8* begin = image.bytes.data() + image.offset;
  Cursor c(begin, begin + image.size);
  while (c.more())
    if (std::string line = search_unit(c, begin + image.size, address); !line.empty()) return line;
  return "";
}

}  // namespace emu
