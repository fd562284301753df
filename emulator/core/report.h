// report.h - where in the source something happened, and how a kernel's execution ends in failure.
#pragma once
#include <string>

#include "../include/llmc_emu/abi.h"

namespace emu {

enum class Fault { none, illegal_address, misaligned, deadlock, race, misuse };

struct Failure {
  Fault fault = Fault::none;
  std::string message;
};

// A source location in four bytes: an interned Site or program counter.
using Where = u32;
Where where_of(Site at);
Where where_of(const void* pc);
inline Where where_of(Where known) { return known; }
std::string describe(Where where);  // "rows.cuh:41", or the bare address when debug lines are missing

// "file:line" of a code address from the DWARF line table of the shared object it lies in; "" if unknown.
std::string source_line(const void* pc);

}  // namespace emu
