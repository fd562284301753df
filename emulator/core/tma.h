// tma.h - the boxes of tensor maps: which bytes of shared memory meet which bytes of global memory (PTX ISA, Tensors:
// tiled mode, out-of-bound handling, swizzle).
#pragma once
#include "block.h"

namespace emu {

inline u32 tma_span(const TensorMapData& m) { return m.swizzle ? 16u << m.swizzle : 0; }  // bytes; 0: no swizzle

inline size_t tma_box_bytes(const TensorMapData& m) {
  size_t n = m.element_bytes;
  for (u32 i = 0; i < m.rank; i++) n *= m.box[i];
  return n;
}

// A copy of the map, after the checks that hold for loads and stores.
TensorMapData checked_map(const void* map, u32 rank, u32 smem, Site at);

// One row of a box, `bytes` long; of those, begin..end-1 lie inside the tensor, from `global` on. smem is the place of
// the row's first byte, before swizzling.
struct TmaRow {
  u32 smem, bytes, begin, end;
  u8* global;
};

template <class F>
void for_each_tma_row(const TensorMapData& m, u32 smem, const i32* coords, F&& f) {
  const u32 row_bytes = m.box[0] * m.element_bytes;
  const i64 first = i64{coords[0]} * m.element_bytes, left = i64(m.dim[0]) * m.element_bytes - first;
  const u32 begin = first < 0 ? u32(std::min<i64>(-first, row_bytes)) : 0;  // innermost bounds cut within rows
  const u32 end = u32(std::clamp<i64>(left, begin, row_bytes));
  u32 rows = 1;
  for (u32 i = 1; i < m.rank; i++) rows *= m.box[i];
  u32 index[5] = {};
  for (u32 r = 0; r < rows; r++) {
    i64 offset = first + begin;
    bool inside = begin < end;
    for (u32 i = 1; i < m.rank; i++) {
      const i64 c = i64{coords[i]} + index[i];
      inside = inside && c >= 0 && c < i64(m.dim[i]);
      offset += c * i64(m.stride[i - 1]);
    }
    if (inside) f(TmaRow{smem + r * row_bytes, row_bytes, begin, end, m.base + offset});
    else f(TmaRow{smem + r * row_bytes, row_bytes, 0, 0, nullptr});
    for (u32 i = 1; i < m.rank && ++index[i] == m.box[i]; i++) index[i] = 0;
  }
}

// Bytes from..to-1 of a row, as f(shared offset, byte of the row, how many): runs that are contiguous in shared memory.
template <class F>
void for_each_run(u32 row, u32 from, u32 to, u32 span, F&& f) {
  if (!span && from < to) f(row + from, from, to - from);
  for (u32 x = from; span && x < to;) {
    const u32 inside = x % 16, bytes = std::min(16 - inside, to - x);
    f(swizzled(row + x - inside, span) + inside, x, bytes);
    x += bytes;
  }
}

}  // namespace emu
