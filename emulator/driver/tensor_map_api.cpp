// tensor_map_api.cpp - cuTensorMapEncodeTiled with the limits CUDA documents for it.
#include <cstring>

#include "../core/tensor_map.h"
#include "state.h"

using namespace fake;

static unsigned element_bytes(CUtensorMapDataType t) {
  switch (t) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    default: return 0;
  }
}

LLMC_API CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                         const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                         const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  LLMC_ENTER
  auto bad = [](const std::string& why) { return refuse(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: " + why); };
  const unsigned bytes = element_bytes(type);
  if (!bytes) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: data type is not emulated");
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: interleave and NaN fill are not emulated");
  if (unsigned(swizzle) > 3) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: atomic swizzles are not emulated");
  if (rank < 1 || rank > 3) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: rank must be 1, 2 or 3");
  if (reinterpret_cast<uintptr_t>(base) % 16) return bad("the global address must be 16-byte aligned");
  // Documented; whether a driver checks it or writes with instructions that want it, nobody says.
  if (reinterpret_cast<uintptr_t>(out) % 64) return bad("the tensor map's own address must be 64-byte aligned");
  if (d.specs[d.current_device()].major < 9) return bad("tensor maps are for compute capability 9.0 and later");
  if (unsigned(promotion) > 3) return bad(emu::text("L2 promotion %u is unknown", unsigned(promotion)));
  emu::TensorMapData m{};
  std::memcpy(m.magic, "ETMA", 4);
  m.rank = emu::u8(rank), m.element_bytes = emu::u8(bytes), m.swizzle = emu::u8(swizzle);
  m.base = static_cast<emu::u8*>(base);
  for (unsigned i = 0; i < rank; i++) {
    if (!dims[i] || dims[i] > (1ull << 32)) return bad(emu::text("dimension %u is %lu, not in 1..2^32", i, dims[i]));
    if (!box[i] || box[i] > 256) return bad(emu::text("box dimension %u is %u, not in 1..256", i, box[i]));
    if (element_strides[i] != 1) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: element strides are not emulated");
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= (1ull << 40))) return bad(emu::text("stride %u is %lu bytes, not a multiple of 16 below 2^40", i, strides[i - 1]));
    m.dim[i] = dims[i];
    m.box[i] = emu::u16(box[i]);
    if (i) m.stride[i - 1] = strides[i - 1];
  }
  const unsigned row = box[0] * bytes, span = swizzle == 3 ? 128 : swizzle == 2 ? 64 : swizzle == 1 ? 32 : 0;
  if (row % 16) return bad(emu::text("the box's inner dimension is %u bytes, not a multiple of 16", row));
  if (span && row > span) return bad(emu::text("the box's inner dimension is %u bytes, beyond the swizzle span of %u", row, span));
  if (span && row < span) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled: a box narrower than its swizzle span is not emulated");
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &m, sizeof m);
  return CUDA_SUCCESS;
}
