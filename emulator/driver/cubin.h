// cubin.h - what the driver reads from a cubin: its architecture and, per kernel, registers, static shared
// memory and parameters.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake {

struct KernelFacts {
  uint32_t registers = 0, max_threads = 0, static_smem = 0;
  std::vector<uint32_t> param_bytes;  // in order
};
struct Cubin {
  uint32_t sm = 0;       // 90 for sm_90 and sm_90a
  bool specific = false; // architecture-specific (sm_90a): runs on that compute capability only
  uint64_t hash = 0;     // FNV-1a of the ELF image; names the twin
  std::map<std::string, KernelFacts> kernels;
};

// false when the image is not a CUDA ELF file.
bool parse_cubin(const void* image, Cubin* out);

}  // namespace fake
