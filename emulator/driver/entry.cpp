// entry.cpp - cuGetProcAddress (how cuda-python finds everything), and the emulator's own controls.
#include <cstring>

#include "state.h"

using namespace fake;

// --- controls: not CUDA, for tests and tools ------------------------------------------------------------
LLMC_API void llmcEmuSetSchedule(unsigned mode, unsigned long long seed, unsigned workers) {
  Driver& d = Driver::instance();
  d.schedule = {emu::Mode(mode), seed, workers};
  d.rng = 88172645463325252ull + seed * 0x9E3779B97F4A7C15ull;
}
LLMC_API void llmcEmuSetChecked(int on) { Driver::instance().prefer_checked = on != 0; }
LLMC_API const char* llmcEmuReport() { return Driver::instance().report.c_str(); }
// Forgets a sticky error and drops queued work (a new context, in effect). Memory stays.
LLMC_API void llmcEmuReset() {
  Driver& d = Driver::instance();
  for (auto& c : d.contexts) c->error = CUDA_SUCCESS;
  for (Stream& s : d.streams) { s.queue.clear(); s.completed = s.submitted; s.capture = nullptr; s.tail.clear(); s.last_kernel = nullptr; }
  for (size_t t = 1; t < d.streams.size(); t++) learn(d.host_knows, u32(t), d.streams[t].submitted);
  emu::race_reset();
  d.report.clear();
}
LLMC_API unsigned long long llmcEmuKernelsRun() { return Driver::instance().kernels_run; }
LLMC_API unsigned long long llmcEmuLiveAllocations() { return emu::Memory::instance().live_allocations(); }

struct Entry { const char* name; void* address; };
#define E(f) {#f, reinterpret_cast<void*>(&f)}
static const Entry kEntries[] = {
    E(cuInit), E(cuDriverGetVersion), E(cuDeviceGetCount), E(cuDeviceGet), E(cuDeviceGetName), E(cuDeviceGetUuid),
    E(cuDeviceTotalMem), E(cuDeviceGetAttribute), E(cuDevicePrimaryCtxRetain), E(cuDevicePrimaryCtxRelease),
    E(cuCtxPushCurrent), E(cuCtxPopCurrent), E(cuCtxSetCurrent), E(cuCtxGetCurrent), E(cuCtxGetDevice), E(cuCtxSynchronize), E(cuDeviceCanAccessPeer),
    E(cuCtxEnablePeerAccess), E(cuCtxDisablePeerAccess), E(cuGetErrorName), E(cuGetErrorString),
    E(cuMemAlloc), E(cuMemFree), E(cuMemHostAlloc), E(cuMemAllocHost), E(cuMemFreeHost), E(cuMemHostGetDevicePointer),
    E(cuMemGetInfo), E(cuDeviceGetDefaultMemPool), E(cuMemPoolCreate), E(cuMemPoolDestroy), E(cuMemPoolSetAttribute),
    E(cuMemAllocFromPoolAsync), E(cuMemAllocAsync), E(cuMemFreeAsync),
    E(cuMemcpyHtoD), E(cuMemcpyDtoH), E(cuMemcpyDtoD), E(cuMemcpy), E(cuMemcpyHtoDAsync), E(cuMemcpyDtoHAsync),
    E(cuMemcpyDtoDAsync), E(cuMemcpyAsync), E(cuMemcpyPeerAsync),
    E(cuMemsetD8), E(cuMemsetD16), E(cuMemsetD32), E(cuMemsetD8Async), E(cuMemsetD16Async), E(cuMemsetD32Async),
    E(cuModuleLoadData), E(cuModuleLoadDataEx), E(cuModuleUnload), E(cuModuleGetFunction), E(cuFuncGetAttribute),
    E(cuFuncSetAttribute), E(cuLaunchKernel), E(cuLaunchKernelEx),
    E(cuStreamCreate), E(cuStreamCreateWithPriority), E(cuStreamDestroy), E(cuStreamSynchronize), E(cuStreamQuery),
    E(cuStreamWaitEvent), E(cuLaunchHostFunc), E(cuStreamBeginCapture), E(cuStreamEndCapture), E(cuStreamIsCapturing),
    E(cuEventCreate), E(cuEventDestroy), E(cuEventRecord), E(cuEventSynchronize), E(cuEventQuery), E(cuEventElapsedTime),
    E(cuGraphCreate), E(cuGraphDestroy), E(cuGraphAddKernelNode), E(cuGraphAddEmptyNode), E(cuGraphAddMemsetNode),
    E(cuGraphAddMemcpyNode), E(cuGraphAddDependencies), E(cuGraphGetNodes), E(cuGraphKernelNodeSetParams),
    E(cuGraphInstantiateWithFlags), {"cuGraphInstantiate", reinterpret_cast<void*>(&cuGraphInstantiateWithFlags)},
    E(cuGraphExecKernelNodeSetParams), E(cuGraphExecUpdate), E(cuGraphExecDestroy), E(cuGraphUpload), E(cuGraphLaunch),
    E(cuTensorMapEncodeTiled)};
#undef E

LLMC_API CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  *out = nullptr;
  for (const Entry& e : kEntries)
    if (!std::strcmp(e.name, name)) *out = e.address;
  if (!std::strcmp(name, "cuGetProcAddress")) *out = reinterpret_cast<void*>(&cuGetProcAddress);
  if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
