// tma.cpp - the boxes of tensor maps: which bytes of shared memory meet which bytes of global memory
// (PTX ISA, Tensors: tiled mode, out-of-bound handling, swizzle).
#include <cstring>

#include "primitives.h"

namespace emu {

u32 tma_span(const TensorMapData& m) { return m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : m.swizzle == 1 ? 32 : 0; }

size_t tma_box_bytes(const TensorMapData& m) {
  size_t n = m.element_bytes;
  for (u32 i = 0; i < m.rank; i++) n *= m.box[i];
  return n;
}

TensorMapData checked_map(const void* map, u32 rank, u32 smem, Site at) {
  TensorMapData m;
  std::memcpy(&m, map, sizeof m);
  if (std::memcmp(m.magic, "ETMA", 4)) misuse(at, "TMA: the descriptor was not made by cuTensorMapEncodeTiled");
  if (m.rank != rank) misuse(at, text("TMA: a %u-dimensional access through a tensor map of rank %u", rank, m.rank));
  const u32 span = tma_span(m), alignment = span ? span * 8 : 128;  // whole swizzle atoms: 1024 B for 128 B rows
  if (smem % alignment)
    fail(Fault::misaligned, where_of(at), text("TMA: shared address 0x%x is not aligned to %u bytes (swizzle %u B)",
                                               smem, alignment, span));
  return m;
}

void for_each_tma_chunk(const TensorMapData& m, u32 smem, const i32* coords, void (*f)(void*, TmaRow), void* arg,
                        bool global_only) {
  const u32 row_bytes = m.box[0] * m.element_bytes, span = tma_span(m);
  const u32 chunk = span && !global_only ? 16 : row_bytes;
  u32 rows = 1;
  for (u32 i = 1; i < m.rank; i++) rows *= m.box[i];
  for (u32 r = 0; r < rows; r++) {
    i64 offset = 0;
    bool inside = true;
    for (u32 i = 1, rest = r; i < m.rank; i++) {
      const i64 c = i64{coords[i]} + rest % m.box[i];
      rest /= m.box[i];
      inside = inside && c >= 0 && c < i64(m.dim[i]);
      offset += c * i64(m.stride[i - 1]);
    }
    for (u32 x = 0; x < row_bytes; x += chunk) {
      // Innermost bounds cut at element granularity.
      const i64 first = i64{coords[0]} * m.element_bytes + x, limit = i64(m.dim[0]) * m.element_bytes;
      const i64 begin = first < 0 ? -first : 0;
      const i64 end = limit - first < chunk ? limit - first : chunk;
      const u32 place = smem + r * row_bytes + x;
      auto emit = [&](i64 from, i64 to, bool valid) {
        if (from >= to) return;
        f(arg, {swizzled(place, span) + u32(from), valid ? m.base + offset + first + from : nullptr, u32(to - from)});
      };
      if (!inside || end <= begin) { emit(0, chunk, false); continue; }
      emit(0, begin, false);
      emit(begin, end, true);
      emit(end, chunk, false);
    }
  }
}

}  // namespace emu
