// abi.h - what a twin (a kernel compiled for the CPU) and the emulator core agree on.
//
// A twin never links against the emulator: the loader stores the address of one `Runtime` table in the
// twin's `llmc_emu_rt`, and every primitive is a call through that table. No dynamic symbol is shared, no
// thread-local variable lives in a twin, so twins built by g++ and by zig load into the same process.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

constexpr u32 kAbiVersion = 3;
// One fiber stack, aligned to its own size. The fiber's header lies near its end, next to the frames in use, where the
// stack's number says: headers at equal offsets would all fall into the same few sets of every cache.
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kHeaderBytes = 512;
constexpr u32 kMaxThreads = 1024;

inline __attribute__((always_inline)) uintptr_t header_of(uintptr_t address_in_stack) {
  const uintptr_t stack = address_in_stack / kStackBytes;
  return (stack + 1) * kStackBytes - kHeaderBytes - stack * 832 % 16384;
}

struct Dim3 {
  u32 x = 1, y = 1, z = 1;
};

// A source location, filled in at the caller's line when used as a default argument.
struct Site {
  const char* file;
  u32 line;
  static constexpr Site here(const char* file = __builtin_FILE(), u32 line = __builtin_LINE()) {
    return Site{file, line};
  }
};

// The part of a fiber that kernels read.
struct ThreadView {
  Dim3 tid, bid, bdim, gdim;
  u8* smem;  // base of the block's dynamic shared memory
  u32 id;    // linear thread index in the block
  u32 lane;  // id % 32
};

inline __attribute__((always_inline)) ThreadView& self() {
  return *reinterpret_cast<ThreadView*>(header_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))));
}

enum class Access : u32 { read = 0, write = 1 };
enum class Mma : u32 { f16, bf16, e4m3, s8 };
enum class Rmw : u32 { add, max, exchange };

// A product of shared-memory operands of two-byte numbers by a warp, as ldmatrix.x4 and mma.m16n8k16 would make it:
// c[i * columns + j] += 16 rows by 8 columns in `steps` steps of 16 along K. These are what one lane gives: its quad of each
// tile of C; for each load its address: a[step * rows + i], one load a fragment; b[n / 2] of fragment n = step * columns + j,
// two fragments a load.
struct SharedProduct {
  Mma kind;
  u32 rows, columns, steps;
  float* c;
  const u32 *a, *b;
};

// Executed once, by the last lane to arrive. args[l] is lane l's argument; lanes outside mask are null.
using WarpExec = void (*)(void** args, u32 mask);

struct Runtime {
  u32 version;
  // memory
  void (*access)(const void* p, u32 bytes, Access kind, Site at);             // explicit, from a primitive
  void (*hook)(const void* p, size_t bytes, Access kind, bool aligned, const void* pc);  // instrumentation
  u32 (*smem_offset)(const void* p, Site at);
  u32 (*atomic_u32)(u32* p, u32 value, Rmw op, Site at);
  float (*atomic_add_f32)(float* p, float value, Site at);
  u32 (*load_acquire)(const u32* p, Site at);
  void (*store_release)(u32* p, u32 value, Site at);
  void (*threadfence)(Site at);
  // synchronisation
  void (*barrier_sync)(u32 id, u32 count, Site at);                           // count 0: the whole block
  void (*barrier_arrive)(u32 id, u32 count, Site at);
  void (*syncwarp)(u32 mask, Site at);
  void (*warp_op)(u32 mask, const char* name, bool aligned, void* arg, WarpExec exec, Site at);
  // Ampere
  void (*cp_async)(u32 dst, const void* src, u32 bytes, u32 valid, Site at);
  void (*cp_async_commit)(Site at);
  void (*cp_async_wait)(u32 pending, Site at);
  void (*ldmatrix)(u32* regs, u32 num, bool trans, u32 addr, Site at);
  void (*mma)(Mma kind, void* c, const u32* a, const u32* b, Site at);
  void (*multiply_shared)(const SharedProduct& product, Site at);
  // Hopper
  void (*mbar_init)(u32 bar, u32 count, Site at);
  void (*mbar_arrive)(u32 bar, u32 tx_bytes, bool expect, Site at);
  void (*mbar_wait)(u32 bar, u32 parity, Site at);
  void (*fence_mbar_init)(Site at);
  void (*fence_proxy_async)(Site at);
  void (*tma_load)(u32 dst, const void* map, u32 bar, u32 rank, const i32* coords, Site at);
  void (*tma_store)(const void* map, u32 src, u32 rank, const i32* coords, Site at);
  void (*tma_commit)(Site at);
  void (*tma_wait)(u32 pending, bool read_only, Site at);
  void (*wgmma)(Mma kind, u32 n, void* acc, const u32* a_regs, u64 desc_a, u64 desc_b, bool accumulate, Site at);
  void (*wgmma_fence)(Site at);
  void (*wgmma_commit)(Site at);
  void (*wgmma_wait)(u32 pending, Site at);
  void (*setmaxnreg)(u32 regs, bool increase, Site at);
  void (*grid_wait)(Site at);
  void (*grid_launch_dependents)(Site at);
};

// One exported kernel of a twin: symbol `llmc_kernel_<name>`.
struct KernelEntry {
  const char* name;
  const u32* param_bytes;  // num_params sizes, as sizeof() sees them on the CPU
  u32 num_params;
  void (*invoke)(void** params);  // runs the kernel body as the current fiber
};

}  // namespace emu
