// primitives.h - the functions behind the Runtime table (abi.h states their arguments), by source file.
#pragma once
#include "block.h"

namespace emu {

// sync.cpp
void barrier_sync(u32 id, u32 count, Site at);
void barrier_arrive(u32 id, u32 count, Site at);
void warp_op(u32 mask, const char* name, bool aligned, void* arg, WarpExec exec, Site at);
void syncwarp(u32 mask, Site at);

// access.cpp
void access(const void* p, u32 bytes, Access kind, Site at);
void hook(const void* p, size_t bytes, Access kind, bool aligned, const void* pc);
u32 smem_offset(const void* p, Site at);
u32 atomic_u32(u32* p, u32 value, Rmw op, Site at);
float atomic_add_f32(float* p, float value, Site at);
u32 load_acquire(const u32* p, Site at);
void store_release(u32* p, u32 value, Site at);
void threadfence(Site at);
void grid_wait(Site at);
void grid_launch_dependents(Site at);

// copies.cpp
void cp_async(u32 dst, const void* src, u32 bytes, u32 valid, Site at);
void cp_async_commit(Site at);
void cp_async_wait(u32 pending, Site at);
void tma_store(const void* map, u32 src, u32 rank, const i32* coords, Site at);
void tma_commit(Site at);
void tma_wait(u32 pending, bool read_only, Site at);

// matrix.cpp
void ldmatrix(u32* regs, u32 num, bool trans, u32 addr, Site at);
void mma(Mma kind, void* c, const u32* a, const u32* b, Site at);
void multiply_shared(const SharedProduct& product, Site at);

// mbarrier.cpp
void mbar_init(u32 bar, u32 count, Site at);
void mbar_arrive(u32 bar, u32 tx_bytes, bool expect, Site at);
void mbar_wait(u32 bar, u32 parity, Site at);
void fence_mbar_init(Site at);
void fence_proxy_async(Site at);
void tma_load(u32 dst, const void* map, u32 bar, u32 rank, const i32* coords, Site at);

// wgmma.cpp
void wgmma(Mma kind, u32 n, void* acc, const u32* a_regs, u64 desc_a, u64 desc_b, bool accumulate, Site at);
void wgmma_fence(Site at);
void wgmma_commit(Site at);
void wgmma_wait(u32 pending, Site at);

// setmaxnreg.cpp
void setmaxnreg(u32 regs, bool increase, Site at);

}  // namespace emu
