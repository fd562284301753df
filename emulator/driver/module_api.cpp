// module_api.cpp - modules (cubin to twin, by content), function attributes, launches and their limits.
#include <algorithm>
#include <cstring>

#include "state.h"

namespace fake {

CUresult check_loaded(const Function& f) {
  return f.module->unloaded ? refuse(CUDA_ERROR_INVALID_HANDLE, f.name + ": its module is unloaded") : CUDA_SUCCESS;
}

// A limit that is exceeded is the call's own error, as CUDA returns it at launch.
CUresult check_launch(const Launch& l) {
  Driver& d = Driver::instance();
  const Function& f = *l.function;
  const DeviceSpec& s = d.specs[f.module->device];
  const u64 threads = u64{l.block.x} * l.block.y * l.block.z;
  auto bad = [&](CUresult code, const std::string& why) { return refuse(code, f.name + ": " + why); };
  if (!threads || !l.grid.x || !l.grid.y || !l.grid.z) return bad(CUDA_ERROR_INVALID_VALUE, "empty grid or block");
  if (threads > 1024 || l.block.x > 1024 || l.block.y > 1024 || l.block.z > 64)
    return bad(CUDA_ERROR_INVALID_VALUE, emu::text("block of %lu threads: the limit is 1024", threads));
  if (l.grid.y > 65535 || l.grid.z > 65535 || l.grid.x > 0x7fffffff)
    return bad(CUDA_ERROR_INVALID_VALUE, "grid dimension beyond 2^31-1 x 65535 x 65535");
  if (int(l.smem_bytes) > f.max_dynamic_smem)
    return bad(CUDA_ERROR_INVALID_VALUE,
               emu::text("%u bytes of dynamic shared memory, but the function is set to %d (cuFuncSetAttribute "
                         "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES opts in, up to %d)",
                         l.smem_bytes, f.max_dynamic_smem, s.smem_optin));
  if (f.facts.max_threads && threads > f.facts.max_threads)
    return bad(CUDA_ERROR_INVALID_VALUE, emu::text("%lu threads: compiled for at most %u", threads, f.facts.max_threads));
  const u64 regs = (u64{f.facts.registers} + 7) / 8 * 8 * threads;
  if (regs > u64(s.regs_sm))
    return bad(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
               emu::text("%u registers x %lu threads exceed the %d of a multiprocessor", f.facts.registers, threads, s.regs_sm));
  size_t param_bytes = 0;
  for (auto& p : l.params) param_bytes += p.size;
  if (param_bytes > 32764) return bad(CUDA_ERROR_INVALID_VALUE, emu::text("%zu bytes of parameters: the limit is 32764", param_bytes));
  return CUDA_SUCCESS;
}

CUresult make_launch(Launch* l, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned smem, void** params) {
  l->function = Driver::instance().object<Function>(f);
  if (!l->function) return refuse(CUDA_ERROR_INVALID_HANDLE, "launch: no such function");
  if (CUresult r = check_loaded(*l->function)) return r;
  l->grid = {grid[0], grid[1], grid[2]};
  l->block = {block[0], block[1], block[2]};
  l->smem_bytes = smem;
  const emu::KernelEntry& entry = *l->function->entry;
  l->params.clear();
  for (u32 i = 0; i < entry.num_params; i++) {
    if (!params || !params[i])
      return refuse(CUDA_ERROR_INVALID_VALUE, l->function->name + emu::text(": no value for parameter %u of %u", i, entry.num_params));
    l->params.emplace_back(params[i], entry.param_bytes[i]);
  }
  return check_launch(*l);
}

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned smem, CUstream handle,
                       void** params, void** extra, bool programmatic) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (extra) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuLaunchKernel: the `extra` parameter buffer is not emulated");
  Work w;
  w.kind = Work::Kind::kernel;
  if (CUresult r = make_launch(&w.launch, f, grid, block, smem, params)) return r;
  if (w.launch.function->module->device != s->device)
    return refuse(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel: the function's module and the stream belong to different devices");
  w.launch.programmatic = programmatic;
  return submit(*s, std::move(w));
}

static CUresult open_twin(Module* m, const std::string& path) {
  std::string why;
  m->twin = emu::load_twin(path, &why);
  if (!m->twin) return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "no twin for this cubin (llmc.emulator.build makes them): " + why);
  return CUDA_SUCCESS;
}

}  // namespace fake

using namespace fake;

LLMC_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  LLMC_ENTER
  auto m = std::make_unique<Module>();
  if (!parse_cubin(image, &m->cubin)) return refuse(CUDA_ERROR_INVALID_IMAGE, "cuModuleLoadData: not a CUDA ELF image (PTX is not emulated)");
  m->device = d.current_device();
  const DeviceSpec& s = d.specs[m->device];
  const u32 cc = u32(s.major * 10 + s.minor), sm = m->cubin.sm;
  const bool runs = m->cubin.specific ? sm == cc : sm / 10 == cc / 10 && sm <= cc;
  if (!runs)
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, emu::text("cubin for sm_%u%s does not run on compute capability %d.%d",
                                                          sm, m->cubin.specific ? "a" : "", s.major, s.minor));
  const std::string path = d.twin_dir + emu::text("/%016lx%s.so", m->cubin.hash, d.prefer_checked ? ".checked" : "");
  if (CUresult r = open_twin(m.get(), path)) return r;
  d.handles.insert(m.get());
  *out = reinterpret_cast<CUmodule>(m.release());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(out, image);
}
// Queued work that names its functions is a mistake, and fails when it runs.
LLMC_API CUresult cuModuleUnload(CUmodule handle) {
  LLMC_ENTER
  auto* m = d.object<Module>(handle);
  if (!m) return refuse(CUDA_ERROR_INVALID_HANDLE, "cuModuleUnload: no such module, or unloaded before");
  m->unloaded = true;
  d.handles.erase(m);
  return CUDA_SUCCESS;
}
// Loads a twin without a cubin (tests of kernels): registers and parameter sizes are then unchecked.
LLMC_API CUresult llmcEmuLoadTwin(CUmodule* out, const char* path) {
  LLMC_ENTER
  auto m = std::make_unique<Module>();
  m->device = d.current_device();
  if (CUresult r = open_twin(m.get(), path)) return r;
  d.handles.insert(m.get());
  *out = reinterpret_cast<CUmodule>(m.release());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  LLMC_ENTER
  auto* m = d.object<Module>(handle);
  if (!m) return refuse(CUDA_ERROR_INVALID_HANDLE, "cuModuleGetFunction: no such module");
  auto& f = m->functions[name];
  if (!f) {
    const emu::KernelEntry* entry = m->twin->kernel(name);
    const bool has_cubin = m->cubin.sm != 0;
    auto facts = m->cubin.kernels.find(name);
    if (!entry || (has_cubin && facts == m->cubin.kernels.end())) {
      m->functions.erase(name);
      return refuse(CUDA_ERROR_NOT_FOUND, std::string("cuModuleGetFunction: no kernel named ") + name);
    }
    f = std::make_unique<Function>();
    f->name = name, f->module = m, f->entry = entry;
    if (has_cubin) {
      f->facts = facts->second;
      const std::vector<uint32_t> twin(entry->param_bytes, entry->param_bytes + entry->num_params);
      if (twin != f->facts.param_bytes)
        return refuse(CUDA_ERROR_INVALID_IMAGE, f->name + ": parameter sizes of cubin (KPARAM_INFO) and twin differ");
    }
    f->max_dynamic_smem = std::max(0, d.specs[m->device].smem_block - int(f->facts.static_smem));
    d.handles.insert(f.get());
  }
  *out = reinterpret_cast<CUfunction>(f.get());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuFuncGetAttribute(int* out, CUfunction_attribute a, CUfunction handle) {
  LLMC_ENTER
  if (!d.object<Function>(handle)) return CUDA_ERROR_INVALID_HANDLE;
  const auto& f = *reinterpret_cast<Function*>(handle);
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = f.facts.max_threads ? int(f.facts.max_threads) : 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = int(f.facts.registers); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *out = f.max_dynamic_smem; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out = int(f.facts.static_smem); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *out = 0; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *out = int(f.module->cubin.sm); break;
    default: return refuse(CUDA_ERROR_NOT_SUPPORTED, emu::text("cuFuncGetAttribute(%d) is not emulated", int(a)));
  }
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute a, int value) {
  LLMC_ENTER
  if (!d.object<Function>(handle)) return CUDA_ERROR_INVALID_HANDLE;
  auto& f = *reinterpret_cast<Function*>(handle);
  const int limit = d.specs[f.module->device].smem_optin - int(f.facts.static_smem);
  if (a == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
  if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    return refuse(CUDA_ERROR_NOT_SUPPORTED, emu::text("cuFuncSetAttribute(%d) is not emulated", int(a)));
  if (value < 0 || value > limit)
    return refuse(CUDA_ERROR_INVALID_VALUE, f.name + emu::text(": %d bytes of shared memory, the device opts in to %d", value, limit));
  f.max_dynamic_smem = value;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned smem, CUstream s, void** params, void** extra) {
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch(f, grid, block, smem, s, params, extra, false);
}
LLMC_API CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  bool programmatic = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute& a = c->attrs[i];
    if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      programmatic = a.value.programmaticStreamSerializationAllowed != 0;
    } else if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      if (a.value.clusterDim.x * a.value.clusterDim.y * a.value.clusterDim.z != 1)
        return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuLaunchKernelEx: thread block clusters (and TMA multicast) are not emulated");
    } else {
      return refuse(CUDA_ERROR_NOT_SUPPORTED, emu::text("cuLaunchKernelEx: launch attribute %d is not emulated", int(a.id)));
    }
  }
  const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  return launch(f, grid, block, c->sharedMemBytes, c->hStream, params, extra, programmatic);
}
