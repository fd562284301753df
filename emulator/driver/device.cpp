// device.cpp - initialisation, devices, contexts, errors as CUDA words them.
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "state.h"

namespace fake {

thread_local Context* current_context = nullptr;
static thread_local std::vector<Context*> below_current;  // what a thread pushed it on, the newest last

Driver& Driver::instance() {
  static auto* driver = new Driver;
  return *driver;
}

Stream* Driver::stream(CUstream handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  if (value <= 2) return &default_stream(current_device());  // null, legacy and per-thread default
  for (size_t i = 1 + specs.size(); i < streams.size(); i++)
    if (&streams[i] == reinterpret_cast<Stream*>(handle)) return streams[i].destroyed ? nullptr : &streams[i];
  return nullptr;
}

bool Driver::ready() const { return initialised && process == getpid(); }

u32 Driver::current_device() const { return current_context ? current_context->device : 0; }

// "name=H100;major=9;..." per device, devices separated by '|' (llmc.emulator.devices writes it).
static DeviceSpec parse_spec(const std::string& text) {
  DeviceSpec s;
  std::stringstream fields(text);
  for (std::string field; std::getline(fields, field, ';');) {
    const size_t equals = field.find('=');
    const std::string key = field.substr(0, equals), value = field.substr(equals + 1);
    if (key == "name") s.name = value;
    else if (key == "major") s.major = std::stoi(value);
    else if (key == "minor") s.minor = std::stoi(value);
    else if (key == "sms") s.sms = std::stoi(value);
    else if (key == "clock_khz") s.clock_khz = std::stoi(value);
    else if (key == "memory_bytes") s.memory_bytes = std::stoull(value);
    else if (key == "l2_bytes") s.l2_bytes = std::stoull(value);
    else if (key == "smem_block") s.smem_block = std::stoi(value);
    else if (key == "smem_optin") s.smem_optin = std::stoi(value);
    else if (key == "smem_sm") s.smem_sm = std::stoi(value);
    else if (key == "regs_sm") s.regs_sm = std::stoi(value);
    else if (key == "threads_sm") s.threads_sm = std::stoi(value);
    else throw std::runtime_error("LLMC_EMU_DEVICES: unknown field " + key);
  }
  return s;
}

static void initialise(Driver& d) {
  const char* devices = std::getenv("LLMC_EMU_DEVICES");
  std::stringstream list(devices ? devices : "");
  for (std::string one; std::getline(list, one, '|');) d.specs.push_back(parse_spec(one));
  if (d.specs.empty()) d.specs.emplace_back();
  if (const char* dir = std::getenv("LLMC_EMU_TWINS")) d.twin_dir = dir;
  if (const char* check = std::getenv("LLMC_EMU_CHECK")) d.prefer_checked = !std::strcmp(check, "race");
  if (const char* schedule = std::getenv("LLMC_EMU_SCHEDULE")) {
    const std::string s = schedule;
    d.schedule.mode = s == "forward" ? emu::Mode::forward : s == "reverse" ? emu::Mode::reverse : emu::Mode::random;
    if (s.rfind("random:", 0) == 0) d.schedule.seed = std::stoull(s.substr(7));
    d.rng += d.schedule.seed * 0x9E3779B97F4A7C15ull;
  }
  if (const char* workers = std::getenv("LLMC_EMU_WORKERS")) d.schedule.workers = u32(std::atoi(workers));
  d.streams.emplace_back();
  d.streams[0].blocking = false;
  for (u32 i = 0; i < d.specs.size(); i++) {
    d.contexts.push_back(std::make_unique<Context>(Context{i}));
    Stream& s = d.streams.emplace_back();
    s.timeline = u32(d.streams.size() - 1), s.device = i;
  }
  d.initialised = true, d.process = getpid();
}

struct ErrorText { CUresult code; const char* name; const char* words; };
static const ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

}  // namespace fake

using namespace fake;

LLMC_API CUresult cuInit(unsigned flags) {
  Driver& d = Driver::instance();
  std::lock_guard guard(d.mutex);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!d.initialised) initialise(d);
  return d.ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;  // not in a child of the process that initialised
}
LLMC_API CUresult cuDriverGetVersion(int* version) { *version = 13000; return CUDA_SUCCESS; }
LLMC_API CUresult cuDeviceGetCount(int* n) {
  Driver& d = Driver::instance();
  if (!d.ready()) return CUDA_ERROR_NOT_INITIALIZED;
  *n = int(d.specs.size());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDeviceGet(CUdevice* out, int i) {
  Driver& d = Driver::instance();
  if (!d.ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (i < 0 || size_t(i) >= d.specs.size()) return CUDA_ERROR_INVALID_DEVICE;
  *out = i;
  return CUDA_SUCCESS;
}

// null: no such device, or the driver is not initialised; `unknown` says which.
static DeviceSpec* spec(CUdevice dev) {
  Driver& d = Driver::instance();
  return d.ready() && dev >= 0 && size_t(dev) < d.specs.size() ? &d.specs[size_t(dev)] : nullptr;
}
static CUresult unknown() { return Driver::instance().ready() ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED; }

LLMC_API CUresult cuDeviceGetName(char* out, int n, CUdevice dev) {
  if (!spec(dev)) return unknown();
  std::snprintf(out, size_t(n), "%s (llmc emulator)", spec(dev)->name.c_str());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDeviceGetUuid(CUuuid* out, CUdevice dev) {
  if (!spec(dev)) return unknown();
  std::memset(out, 0, sizeof *out);
  std::snprintf(out->bytes, sizeof out->bytes, "llmc-emu-%d", dev);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDeviceTotalMem(size_t* out, CUdevice dev) {
  if (!spec(dev)) return unknown();
  *out = spec(dev)->memory_bytes;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute a, CUdevice dev) {
  const DeviceSpec* s = spec(dev);
  if (!s) return unknown();
  const bool hopper = s->major >= 9;
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = s->major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = s->minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = s->sms; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *out = s->clock_khz; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *out = int(s->l2_bytes); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *out = s->smem_block; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *out = s->smem_optin; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *out = s->smem_sm; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *out = s->regs_sm; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *out = s->threads_sm; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *out = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *out = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *out = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *out = 65535; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *out = 32; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *out = 1; break;
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: *out = hopper; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *out = 0; break;  // refused by the emulator: do not promise it
    default: return refuse(CUDA_ERROR_NOT_SUPPORTED, emu::text("cuDeviceGetAttribute(%d) is not emulated", int(a)));
  }
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice dev) {
  Driver& d = Driver::instance();
  if (!d.ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!spec(dev)) return unknown();
  d.contexts[size_t(dev)]->retained++;
  *out = reinterpret_cast<CUcontext>(d.contexts[size_t(dev)].get());
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  if (!spec(dev)) return unknown();
  Context& c = *Driver::instance().contexts[size_t(dev)];
  if (c.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--c.retained) return CUDA_SUCCESS;
  c.error = CUDA_SUCCESS;  // a destroyed context forgets its error, and its streams; what was not freed stays, to be seen
  Driver& d = Driver::instance();
  for (size_t t = 1 + d.specs.size(); t < d.streams.size(); t++)
    if (d.streams[t].device == u32(dev)) d.streams[t].destroyed = true;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxPushCurrent(CUcontext c) {
  if (!Driver::instance().ready()) return CUDA_ERROR_NOT_INITIALIZED;
  auto* context = reinterpret_cast<Context*>(c);
  if (!context || !context->retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (current_context) below_current.push_back(current_context);
  current_context = context;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxPopCurrent(CUcontext* out) {
  if (!Driver::instance().ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = reinterpret_cast<CUcontext>(current_context);
  current_context = below_current.empty() ? nullptr : below_current.back();
  if (!below_current.empty()) below_current.pop_back();
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxSetCurrent(CUcontext c) {
  if (!Driver::instance().ready()) return CUDA_ERROR_NOT_INITIALIZED;
  auto* context = reinterpret_cast<Context*>(c);
  if (context && !context->retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context) return current_context ? cuCtxPopCurrent(nullptr) : CUDA_SUCCESS;
  current_context = context;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxGetCurrent(CUcontext* out) {
  *out = reinterpret_cast<CUcontext>(current_context);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxGetDevice(CUdevice* out) {
  if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
  *out = int(current_context->device);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxSynchronize() {
  LLMC_ENTER
  for (Stream& s : d.streams)
    if (s.timeline && s.device == d.current_device()) {
      if (s.capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      if (CUresult r = finish(s)) return r;
    }
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuDeviceCanAccessPeer(int* out, CUdevice a, CUdevice b) {
  if (!spec(a) || !spec(b)) return unknown();
  *out = a != b;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  LLMC_ENTER
  if (flags || !peer) return CUDA_ERROR_INVALID_VALUE;
  const u32 other = reinterpret_cast<Context*>(peer)->device;
  if (other == d.current_device()) return CUDA_ERROR_INVALID_DEVICE;
  emu::Memory::instance().set_peer(d.current_device(), other, true);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  LLMC_ENTER
  emu::Memory::instance().set_peer(d.current_device(), reinterpret_cast<Context*>(peer)->device, false);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGetErrorName(CUresult e, const char** out) {
  for (const ErrorText& t : kErrors)
    if (t.code == e) { *out = t.name; return CUDA_SUCCESS; }
  *out = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
// CUDA's words, and behind them the emulator's last report.
LLMC_API CUresult cuGetErrorString(CUresult e, const char** out) {
  static thread_local std::string words;
  for (const ErrorText& t : kErrors)
    if (t.code == e) {
      words = t.words;
      if (e != CUDA_SUCCESS && !Driver::instance().report.empty()) words += ": " + Driver::instance().report;
      *out = words.c_str();
      return CUDA_SUCCESS;
    }
  *out = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
