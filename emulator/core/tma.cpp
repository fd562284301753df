#include "tma.h"

#include "primitives.h"

namespace emu {

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

}  // namespace emu
