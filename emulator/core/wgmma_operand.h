// wgmma_operand.h - where the operands and the result of a wgmma lie (PTX ISA, wgmma: matrix descriptors, register
// fragments), and the product itself.
#pragma once
#include "block.h"

namespace emu {

// A K-major operand as its matrix descriptor says: rows in groups of 8, `stride` bytes apart; within a group rows of
// `span` bytes, swizzled, or (span 0) core matrices of 8 rows by 16 bytes, `leading` bytes apart along K.
struct Operand {
  u32 start, leading, stride, span;
  explicit Operand(u64 desc)
      : start(u32(desc & 0x3fff) << 4), leading(u32(desc >> 16 & 0x3fff) << 4), stride(u32(desc >> 32 & 0x3fff) << 4),
        span(desc >> 62 ? 256u >> (desc >> 62) : 0) {}

  // Calls f(row, byte along K, shared offset) for the 16-byte chunks of 32 bytes along K, contiguous in every mode.
  template <class F>
  void each_chunk(u32 rows, F&& f) const {
    const u32 pitch = span ? span : 16, along = span ? 16 : leading;
    for (u32 row = 0; row < rows; row += 8)
      for (u32 r = 0; r < 8; r++) {
        const u32 address = start + row / 8 * stride + r * pitch;
        f(row + r, 0, swizzled(address, span));
        f(row + r, 16, swizzled(address + along, span));
      }
  }

  // One past the last byte that could be read, swizzled or not.
  u32 end(u32 rows) const { return start + (rows / 8 - 1) * stride + (span ? 8 * span : leading + 128); }
};

// Row and column, in the 64 x n tile, of value `v` of thread `t` (wgmma register fragments).
inline u32 tile_index(u32 t, u32 v, u32 n) {
  const u32 row = t / 32 * 16 + t % 32 / 4 + (v >> 1 & 1) * 8, col = v / 4 * 8 + t % 4 * 2 + (v & 1);
  return row * n + col;
}

// The operation's product into its accumulator's tile; once.
void multiply(Block& block, WgmmaOp& op);

}  // namespace emu
