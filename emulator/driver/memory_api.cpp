// memory_api.cpp - device, pinned and pool memory; copies and memsets, synchronous and lazy.
#include <cstring>

#include "state.h"

using namespace fake;
using emu::Memory;

static u8* bytes_of(CUdeviceptr p) { return reinterpret_cast<u8*>(p); }

static CUresult allocate(CUdeviceptr* out, size_t bytes, u32 device) {
  Driver& d = Driver::instance();
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = Memory::instance();
  const size_t free = d.specs[device].memory_bytes - memory.used(device);
  u8* p = bytes <= free ? memory.allocate(bytes, device, false) : nullptr;
  if (!p) return refuse(CUDA_ERROR_OUT_OF_MEMORY, emu::text("out of memory: %zu bytes asked, %zu of %zu free on device %u",
                                                            bytes, free, d.specs[device].memory_bytes, device));
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

static CUresult check_range(const u8* p, size_t n, const char* what) {
  if (Memory::instance().covers(p, n)) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_INVALID_VALUE, std::string(what) + ": " + Memory::instance().check(p, n, 1, ~0u).text);
}

static Work copy_work(u8* dst, const u8* src, size_t n) {
  Work w;
  w.kind = Work::Kind::copy, w.dst = dst, w.src = const_cast<u8*>(src), w.bytes = n;
  return w;
}

// Pageable host memory is read before an asynchronous call returns; pinned memory whenever the copy runs.
static CUresult copy_async(u8* dst, const u8* src, size_t n, CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  Memory& memory = Memory::instance();
  if (memory.in_range(dst)) if (CUresult r = check_range(dst, n, "destination")) return r;
  if (memory.in_range(src)) if (CUresult r = check_range(src, n, "source")) return r;
  Work w = copy_work(dst, src, n);
  const bool pageable_source = !memory.in_range(src), pageable_target = !memory.in_range(dst);
  if (pageable_source && !s->capture) w.staged.assign(src, src + n);
  if (CUresult r = submit(*s, std::move(w))) return r;
  return pageable_target && !s->capture ? finish(*s) : CUDA_SUCCESS;
}

static CUresult copy_now(u8* dst, const u8* src, size_t n, bool device_dst, bool device_src) {
  LLMC_ENTER
  if (device_dst) if (CUresult r = check_range(dst, n, "destination")) return r;
  if (device_src) if (CUresult r = check_range(src, n, "source")) return r;
  return synchronous(d.default_stream(d.current_device()), copy_work(dst, src, n));
}

static CUresult fill(CUdeviceptr p, u32 value, u32 value_bytes, size_t count, CUstream handle, bool sync) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (p % value_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_range(bytes_of(p), count * value_bytes, "memset")) return r;
  Work w;
  w.kind = Work::Kind::fill, w.dst = bytes_of(p), w.bytes = count * value_bytes, w.value = value, w.value_bytes = value_bytes;
  return sync ? synchronous(*s, std::move(w)) : submit(*s, std::move(w));
}

LLMC_API CUresult cuMemAlloc(CUdeviceptr* out, size_t n) { LLMC_ENTER return allocate(out, n, d.current_device()); }
// Frees at once. A real driver happens to wait for the device here; a program must not rely on it, so work
// that is still queued and touches the memory is reported as a use after free.
LLMC_API CUresult cuMemFree(CUdeviceptr p) {
  LLMC_ENTER
  if (!p) return CUDA_SUCCESS;
  const emu::Allocation* a = Memory::instance().find(bytes_of(p));
  if (d.prefer_checked && a && !a->freed && a->base == bytes_of(p)) {
    emu::Op& op = d.ops.emplace_back();  // the host's: what it has not waited for may still use the memory
    op.id = u32(d.ops.size()), op.name = "cuMemFree (host)", op.device = a->device, op.knows = d.host_knows;
    const emu::Failure f = emu::race_free(op, a->base, a->bytes);
    if (f.fault != emu::Fault::none)
      return fail_with(d.current_device(), CUDA_ERROR_ILLEGAL_ADDRESS, "use after free: " + f.message);
  }
  if (!Memory::instance().release(bytes_of(p)))
    return refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree: not the base of a live allocation: " + emu::hex(bytes_of(p)));
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuMemHostAlloc(void** out, size_t n, unsigned flags) {
  LLMC_ENTER
  if (!n || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  *out = Memory::instance().allocate(n, 0, true);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
LLMC_API CUresult cuMemAllocHost(void** out, size_t n) { return cuMemHostAlloc(out, n, 0); }
LLMC_API CUresult cuMemFreeHost(void* p) {
  LLMC_ENTER
  return Memory::instance().release(static_cast<u8*>(p)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
LLMC_API CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* p, unsigned) {
  LLMC_ENTER
  if (!Memory::instance().covers(p, 1)) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuMemGetInfo(size_t* free, size_t* total) {
  LLMC_ENTER
  *total = d.specs[d.current_device()].memory_bytes;
  *free = *total - Memory::instance().used(d.current_device());
  return CUDA_SUCCESS;
}

LLMC_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice dev) {
  LLMC_ENTER
  static char keys[64];
  if (dev < 0 || size_t(dev) >= d.specs.size()) return CUDA_ERROR_INVALID_DEVICE;
  d.pools[&keys[dev]] = u32(dev);
  *out = reinterpret_cast<CUmemoryPool>(&keys[dev]);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  LLMC_ENTER
  if (props->location.id < 0 || size_t(props->location.id) >= d.specs.size()) return CUDA_ERROR_INVALID_VALUE;
  auto* key = new char;
  d.pools[key] = u32(props->location.id);
  *out = reinterpret_cast<CUmemoryPool>(key);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  LLMC_ENTER
  return d.pools.erase(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
LLMC_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute, void*) {
  LLMC_ENTER
  return d.pools.count(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
LLMC_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t n, CUmemoryPool pool, CUstream handle) {
  LLMC_ENTER
  if (!d.pools.count(pool) || !d.stream(handle)) return CUDA_ERROR_INVALID_VALUE;
  return allocate(out, n, d.pools[pool]);
}
LLMC_API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t n, CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  return s ? allocate(out, n, s->device) : CUDA_ERROR_INVALID_HANDLE;
}
LLMC_API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  const emu::Allocation* a = Memory::instance().find(bytes_of(p));
  if (!s || !a || a->freed || a->base != bytes_of(p) || !d.async_freed.insert(a->base).second)
    return refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync: not the base of a live allocation, or freed twice: " + emu::hex(bytes_of(p)));
  Work w;
  w.kind = Work::Kind::free, w.dst = a->base, w.bytes = a->bytes;
  return submit(*s, std::move(w));
}

LLMC_API CUresult cuMemcpyHtoD(CUdeviceptr dst, const void* src, size_t n) { return copy_now(bytes_of(dst), static_cast<const u8*>(src), n, true, false); }
LLMC_API CUresult cuMemcpyDtoH(void* dst, CUdeviceptr src, size_t n) { return copy_now(static_cast<u8*>(dst), bytes_of(src), n, false, true); }
LLMC_API CUresult cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t n) { return copy_now(bytes_of(dst), bytes_of(src), n, true, true); }
LLMC_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) { return copy_now(bytes_of(dst), bytes_of(src), n, false, false); }
LLMC_API CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void* src, size_t n, CUstream s) { return copy_async(bytes_of(dst), static_cast<const u8*>(src), n, s); }
LLMC_API CUresult cuMemcpyDtoHAsync(void* dst, CUdeviceptr src, size_t n, CUstream s) { return copy_async(static_cast<u8*>(dst), bytes_of(src), n, s); }
LLMC_API CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) { return copy_async(bytes_of(dst), bytes_of(src), n, s); }
LLMC_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) { return copy_async(bytes_of(dst), bytes_of(src), n, s); }
LLMC_API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n, CUstream s) { return copy_async(bytes_of(dst), bytes_of(src), n, s); }
LLMC_API CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n) { return fill(p, v, 1, n, nullptr, true); }
LLMC_API CUresult cuMemsetD16(CUdeviceptr p, unsigned short v, size_t n) { return fill(p, v, 2, n, nullptr, true); }
LLMC_API CUresult cuMemsetD32(CUdeviceptr p, unsigned v, size_t n) { return fill(p, v, 4, n, nullptr, true); }
LLMC_API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return fill(p, v, 1, n, s, false); }
LLMC_API CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { return fill(p, v, 2, n, s, false); }
LLMC_API CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) { return fill(p, v, 4, n, s, false); }
