// launch.h - twins loaded from disk, and grids executed over all cores.
#pragma once
#include <map>
#include <string>

#include "block.h"

namespace emu {

struct Twin {
  void* handle = nullptr;
  std::string path;
  bool checked = false;
  const KernelEntry* kernel(const std::string& name) const;  // null when the twin has no such kernel
};

// Loads a twin; on failure returns null and says why. A twin is never unloaded: reports of later kernels may
// still name its source lines.
Twin* load_twin(const std::string& path, std::string* why);

// Runs the grid to its end. Checked twins run on one core: the detector sees one interleaving at a time.
Failure run_grid(const LaunchInfo& launch);

}  // namespace emu
