#include "cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace fake {

namespace {

constexpr uint8_t kMaxThreads = 0x05, kRegCount = 0x2f, kKparamInfo = 0x17;  // EIATTR codes of .nv.info

template <class T>
T read(const uint8_t* p) { T v; std::memcpy(&v, p, sizeof v); return v; }

// Calls f(attribute, payload, bytes) for each record of a .nv.info section.
template <class F>
void each_attribute(const uint8_t* p, size_t n, F&& f) {
  for (size_t i = 0; i + 4 <= n;) {
    const uint8_t format = p[i], attribute = p[i + 1];
    const uint16_t size = read<uint16_t>(p + i + 2);
    if (format == 4) { f(attribute, p + i + 4, size); i += 4u + size; }  // EIFMT_SVAL
    else i += 4;
  }
}

}  // namespace

bool parse_cubin(const void* image, Cubin* out) {
  const auto* bytes = static_cast<const uint8_t*>(image);
  if (std::memcmp(bytes, ELFMAG, SELFMAG)) return false;
  const auto& h = *static_cast<const Elf64_Ehdr*>(image);
  if (h.e_machine != 190) return false;  // EM_CUDA
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + h.e_shoff);
  const auto* programs = reinterpret_cast<const Elf64_Phdr*>(bytes + h.e_phoff);
  size_t size = std::max<size_t>(h.e_shoff + size_t(h.e_shnum) * h.e_shentsize, h.e_phoff + size_t(h.e_phnum) * h.e_phentsize);
  for (int i = 0; i < h.e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS) size = std::max<size_t>(size, sections[i].sh_offset + sections[i].sh_size);
  (void)programs;
  out->hash = 1469598103934665603ull;
  for (size_t i = 0; i < size; i++) out->hash = (out->hash ^ bytes[i]) * 1099511628211ull;
  // ABI version 8 (CUDA 13) keeps the architecture in bits 8..15 of e_flags, older ones in bits 0..7.
  out->sm = h.e_ident[EI_ABIVERSION] >= 8 ? h.e_flags >> 8 & 0xff : h.e_flags & 0xff;
  out->specific = h.e_ident[EI_ABIVERSION] >= 8 ? h.e_flags >> 3 & 1 : h.e_flags >> 11 & 1;

  const char* names = reinterpret_cast<const char*>(bytes) + sections[h.e_shstrndx].sh_offset;
  const Elf64_Sym* symbols = nullptr;
  const char* strings = nullptr;
  for (int i = 0; i < h.e_shnum; i++)
    if (sections[i].sh_type == SHT_SYMTAB) {
      symbols = reinterpret_cast<const Elf64_Sym*>(bytes + sections[i].sh_offset);
      strings = reinterpret_cast<const char*>(bytes) + sections[sections[i].sh_link].sh_offset;
    }
  for (int i = 0; i < h.e_shnum; i++) {
    const std::string name = names + sections[i].sh_name;
    const uint8_t* p = bytes + sections[i].sh_offset;
    if (name == ".nv.info" && symbols) {
      each_attribute(p, sections[i].sh_size, [&](uint8_t a, const uint8_t* v, size_t n) {
        if (a == kRegCount && n >= 8)
          out->kernels[strings + symbols[read<uint32_t>(v)].st_name].registers = read<uint32_t>(v + 4);
      });
    } else if (name.rfind(".nv.shared.", 0) == 0) {
      // From sm_90 on the section begins with the 1 KiB that the system keeps, which is not of the kernel's share.
      const auto size = uint32_t(sections[i].sh_size), kept = out->sm >= 90 ? std::min(size, 1024u) : 0;
      if (name.rfind(".nv.shared.reserved.", 0)) out->kernels[name.substr(11)].static_smem = size - kept;
    } else if (name.rfind(".nv.info.", 0) == 0) {
      KernelFacts& facts = out->kernels[name.substr(9)];
      std::map<uint16_t, uint32_t> params;
      each_attribute(p, sections[i].sh_size, [&](uint8_t a, const uint8_t* v, size_t n) {
        if (a == kMaxThreads && n >= 12)
          facts.max_threads = read<uint32_t>(v) * read<uint32_t>(v + 4) * read<uint32_t>(v + 8);
        if (a == kKparamInfo && n >= 12) params[read<uint16_t>(v + 4)] = read<uint32_t>(v + 8) >> 18 & 0x3fff;
      });
      for (auto& [ordinal, bytes_of] : params) facts.param_bytes.push_back(bytes_of);
    }
  }
  return true;
}

}  // namespace fake
