// tensor_map.h - the emulator's own encoding of a CUtensorMap (opaque on the GPU as well), and swizzles.
#pragma once
#include "../include/llmc_emu/abi.h"

namespace emu {

struct TensorMapData {
  char magic[4];        // "ETMA"
  u8 rank, element_bytes, swizzle, nan_fill;  // swizzle: 0 none, 1 = 32 B, 2 = 64 B, 3 = 128 B (CUtensorMapSwizzle)
  u8* base;
  u64 dim[5];           // elements, innermost first
  u64 stride[4];        // bytes, of dimensions 1..4
  u16 box[5];
  u16 padding;
};
static_assert(sizeof(TensorMapData) <= 128);

// Shared-memory swizzle: 16-byte chunks XOR the row of 128 bytes (PTX ISA, Tensors: swizzling modes). `bytes` is
// the span: 128, 64, 32, or 0. Acts on absolute shared-memory address bits, which is why TMA asks for
// alignment.
inline u32 swizzled(u32 address, u32 span) { return address ^ ((address >> 7 & span / 16 - (span != 0)) << 4); }

}  // namespace emu
