// device.cuh - the device primitives: the only file with inline PTX (tests/cuda/kernels/test_lint.py).
//
// Every primitive has two bodies. Here: one PTX instruction, whose SASS opcode tests/cuda/kernels/test_primitives.py
// asserts. In emulator/include/llmc_emu/device.h: its meaning on the CPU. Kernels use these names and plain C++
// only; they include nothing else and have no static __shared__ arrays. Addresses named `u32` are shared-memory
// addresses (smem_addr), pointers are global.
#pragma once

#ifdef LLMC_EMU
#include "device.h"
#define LLMC_DEVICE inline
#define LLMC_UNROLL
#define LLMC_NO_UNROLL
#else

typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
#define LLMC_DEVICE __device__ __forceinline__
#define LLMC_UNROLL _Pragma("unroll")
#define LLMC_NO_UNROLL _Pragma("unroll 1")
#define LLMC_KERNEL(threads, blocks_per_sm) extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm)
#define LLMC_EXPORT(kernel)
#define LLMC_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]

// --- types and conversions (cvt) ---------------------------------------------------------------
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct e4m3 { unsigned char bits; };
struct s8 { signed char value; };
struct __align__(8) Vec8 { u32 x[2]; };
struct __align__(16) Vec16 { u32 x[4]; };
struct __align__(64) TensorMap { unsigned char opaque[128]; };

LLMC_DEVICE u32 float_bits(float x) { return __float_as_uint(x); }
LLMC_DEVICE float bits_float(u32 x) { return __uint_as_float(x); }
LLMC_DEVICE u64 double_bits(double x) { return (u64)__double_as_longlong(x); }
LLMC_DEVICE double bits_double(u64 x) { return __longlong_as_double((long long)x); }
LLMC_DEVICE float to_f32(bf16 v) { return __uint_as_float(u32(v.bits) << 16); }
LLMC_DEVICE float to_f32(f16 v) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits)); return r; }
LLMC_DEVICE bf16 to_bf16(float v) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r; }
LLMC_DEVICE f16 to_f16(float v) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r; }
LLMC_DEVICE u32 pack_bf16(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
#if __CUDA_ARCH__ >= 890
LLMC_DEVICE float to_f32(e4m3 v) {
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)v.bits));
  return to_f32(f16{(unsigned short)(pair & 0xffff)});
}
LLMC_DEVICE e4m3 to_e4m3(float v) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  return e4m3{(unsigned char)(pair & 0xff)};
}
#endif
// Relative error about 2^-22; denormals are flushed to zero.
LLMC_DEVICE float exp2_approx(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
LLMC_DEVICE float rsqrt_approx(float x) { float r; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
LLMC_DEVICE float rcp_approx(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }

// --- global memory -----------------------------------------------------------------------------------
LLMC_DEVICE Vec16 load16(const void* p) {
  Vec16 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p) : "memory");
  return v;
}
// Data read once and written by nobody during the kernel (weights): past L1, whole lines into L2.
LLMC_DEVICE Vec16 load16_stream(const void* p) {
  Vec16 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p));
  return v;
}
LLMC_DEVICE void store16(void* p, const Vec16& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"l"(p), "r"(v.x[0]), "r"(v.x[1]), "r"(v.x[2]), "r"(v.x[3]) : "memory");
}
LLMC_DEVICE Vec8 load8(const void* p) {
  Vec8 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x[0]), "=r"(v.x[1]) : "l"(p) : "memory");
  return v;
}
LLMC_DEVICE void store8(void* p, const Vec8& v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x[0]), "r"(v.x[1]) : "memory");
}
LLMC_DEVICE u32 load4(const void* p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
LLMC_DEVICE void store4(void* p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// --- shared memory, asynchronous copies (cp.async) -----------------------------------------------------
LLMC_DEVICE u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Copies 16 bytes; writes 16 zero bytes when !valid (src must still be a readable address).
LLMC_DEVICE void cp_async16(u32 dst, const void* src, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
// Copies the first `bytes` of 16 (0..16) and writes zeros for the rest.
LLMC_DEVICE void cp_async16_head(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
LLMC_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
LLMC_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// --- warp matrix operations (ldmatrix, mma); all 32 lanes take part ---------------------------------------------
LLMC_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
LLMC_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
// c[16x8] += a[16xK] * b[Kx8]; K = 16 for 2-byte elements, 32 for 1-byte ones.
#define LLMC_MMA(name, Acc, C, instruction)                                                              \
  LLMC_DEVICE void name(Acc (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {                                \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"          \
                 : C(c[0]), C(c[1]), C(c[2]), C(c[3])                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                        \
  }
LLMC_MMA(mma_bf16, float, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
LLMC_MMA(mma_f16, float, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
LLMC_MMA(mma_s8, int, "+r", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
#if __CUDA_ARCH__ >= 890
LLMC_MMA(mma_e4m3, float, "+f", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif
// Where a kernel is emulated, a whole product of ldmatrix.x4 and mma may be one operation (false: it is not): steps of 16
// along K, ROWS fragments of A in a step, whose addresses are a_at(step, row), and COLUMNS of B, two in a load: fragments
// 2n and 2n + 1, numbered step * COLUMNS + column, at b_at(n).
template <class T, int ROWS, int COLUMNS, int STEPS, class A, class B>
LLMC_DEVICE bool multiply_at_once(float (&)[ROWS * COLUMNS][4], const A&, const B&) { return false; }

// --- barriers, atomics, dependent launch ------------------------------------------------------------------
// `threads` is a multiple of 32; id 0 belongs to __syncthreads.
LLMC_DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
LLMC_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Relaxed atomics, device scope: order them with __threadfence().
LLMC_DEVICE u32 atomic_add(u32* p, u32 v) {
  u32 r;
  asm volatile("atom.global.gpu.relaxed.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
// The same in shared memory, block scope: order them with __syncthreads().
LLMC_DEVICE u32 smem_atomic_add(u32 addr, u32 v) {
  u32 r;
  asm volatile("atom.shared.cta.relaxed.add.u32 %0, [%1], %2;" : "=r"(r) : "r"(addr), "r"(v) : "memory");
  return r;
}
LLMC_DEVICE u32 atomic_max(u32* p, u32 v) {
  u32 r;
  asm volatile("atom.global.gpu.relaxed.max.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
LLMC_DEVICE u32 atomic_exchange(u32* p, u32 v) {
  u32 r;
  asm volatile("atom.global.gpu.relaxed.exch.b32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
LLMC_DEVICE float atomic_add(float* p, float v) {
  float r;
  asm volatile("atom.global.gpu.relaxed.add.f32 %0, [%1], %2;" : "=f"(r) : "l"(p), "f"(v) : "memory");
  return r;
}
LLMC_DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
LLMC_DEVICE void store_release(u32* p, u32 v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Programmatic dependent launch (griddepcontrol); nothing before Hopper.
LLMC_DEVICE void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
LLMC_DEVICE void grid_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
// --- mbarrier and TMA -----------------------------------------------------------------
LLMC_DEVICE void mbar_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
// Makes this thread's mbar_init visible to the async proxy; a __syncthreads follows.
LLMC_DEVICE void mbar_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
LLMC_DEVICE void mbar_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and makes the phase wait for `bytes` of TMA traffic as well.
LLMC_DEVICE void mbar_expect_tx(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Returns once the phase of this parity has completed.
LLMC_DEVICE void mbar_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(bar), "r"(parity) : "memory");
}
// Orders this thread's generic accesses to shared memory before later ones of the async proxy (TMA, wgmma).
LLMC_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define LLMC_TMA_LOAD "shared::cluster.global.tile.mbarrier::complete_tx::bytes"
LLMC_DEVICE void tma_load_1d(u32 dst, const TensorMap* map, u32 bar, i32 x) {
  asm volatile("cp.async.bulk.tensor.1d." LLMC_TMA_LOAD " [%0], [%1, {%3}], [%2];"
               ::"r"(dst), "l"(map), "r"(bar), "r"(x) : "memory");
}
LLMC_DEVICE void tma_load_2d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d." LLMC_TMA_LOAD " [%0], [%1, {%3, %4}], [%2];"
               ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
}
LLMC_DEVICE void tma_load_3d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, i32 z) {
  asm volatile("cp.async.bulk.tensor.3d." LLMC_TMA_LOAD " [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}
LLMC_DEVICE void tma_store_1d(const TensorMap* map, u32 src, i32 x) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];"
               ::"l"(map), "r"(src), "r"(x) : "memory");
}
LLMC_DEVICE void tma_store_2d(const TensorMap* map, u32 src, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(map), "r"(src), "r"(x), "r"(y) : "memory");
}
LLMC_DEVICE void tma_store_3d(const TensorMap* map, u32 src, i32 x, i32 y, i32 z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(map), "r"(src), "r"(x), "r"(y), "r"(z) : "memory");
}
LLMC_DEVICE void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N>  // until all but N groups have read their shared memory
LLMC_DEVICE void tma_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N>  // until all but N groups are visible in global memory
LLMC_DEVICE void tma_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// --- warpgroup matrix operations (wgmma), sm_90a; all 128 threads of a warpgroup take part ----------------
// Before the first wgmma, and before the first one after a wgmma_wait.
LLMC_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LLMC_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
LLMC_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int N>
LLMC_DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
LLMC_DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// d[64xN] (+)= a[64xK] * b[NxK]^T, both operands K-major; N = 2R. ss: A by descriptor; rs: A from registers.
template <class T, int R> struct Wgmma;
#define LLMC_C8(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define LLMC_C4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define LLMC_C16(C, i) LLMC_C8(C, i), LLMC_C8(C, i + 8)
#define LLMC_C32(C, i) LLMC_C8(C, i), LLMC_C8(C, i + 8), LLMC_C8(C, i + 16), LLMC_C8(C, i + 24)
#define LLMC_C64(C, i) LLMC_C32(C, i), LLMC_C32(C, i + 32)
#define LLMC_C96(C, i) LLMC_C64(C, i), LLMC_C32(C, i + 64)
#define LLMC_C128(C, i) LLMC_C64(C, i), LLMC_C64(C, i + 64)
#define LLMC_S4 "%0, %1, %2, %3"
#define LLMC_S8 LLMC_S4 ", %4, %5, %6, %7"
#define LLMC_S16 LLMC_S8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LLMC_S32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_S64 LLMC_S32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMC_S96 LLMC_S64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLMC_S128 LLMC_S96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LLMC_WGMMA(T, Acc, C, R, shape, types, tail_ss, tail_rs, o0, o1, o2, o3, o4, o5)                        \
  template <> struct Wgmma<T, R> {                                                                             \
    static LLMC_DEVICE void ss(Acc (&d)[R], u64 a, u64 b, int accumulate) {                                    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o2 ", 0;\nwgmma.mma_async.sync.aligned." shape "." types  \
                   " {" LLMC_S##R "}, " o0 ", " o1 ", p" tail_ss ";\n}"                                          \
                   : LLMC_C##R(C, 0) : "l"(a), "l"(b), "r"(accumulate));                                       \
    }                                                                                                          \
    static LLMC_DEVICE void rs(Acc (&d)[R], const u32 (&a)[4], u64 b, int accumulate) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o5 ", 0;\nwgmma.mma_async.sync.aligned." shape "." types  \
                   " {" LLMC_S##R "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", p" tail_rs ";\n}"                \
                   : LLMC_C##R(C, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));   \
    }                                                                                                          \
  };
#define LLMC_WGMMA_N(T, Acc, C, k, types, ss, rs)                                                                     \
  LLMC_WGMMA(T, Acc, C, 4, "m64n8" k, types, ss, rs, "%4", "%5", "%6", "%7", "%8", "%9")                              \
  LLMC_WGMMA(T, Acc, C, 8, "m64n16" k, types, ss, rs, "%8", "%9", "%10", "%11", "%12", "%13")                         \
  LLMC_WGMMA(T, Acc, C, 16, "m64n32" k, types, ss, rs, "%16", "%17", "%18", "%19", "%20", "%21")                      \
  LLMC_WGMMA(T, Acc, C, 32, "m64n64" k, types, ss, rs, "%32", "%33", "%34", "%35", "%36", "%37")                      \
  LLMC_WGMMA(T, Acc, C, 64, "m64n128" k, types, ss, rs, "%64", "%65", "%66", "%67", "%68", "%69")                     \
  LLMC_WGMMA(T, Acc, C, 96, "m64n192" k, types, ss, rs, "%96", "%97", "%98", "%99", "%100", "%101")                   \
  LLMC_WGMMA(T, Acc, C, 128, "m64n256" k, types, ss, rs, "%128", "%129", "%130", "%131", "%132", "%133")
LLMC_WGMMA_N(bf16, float, "+f", "k16", "f32.bf16.bf16", ", 1, 1, 0, 0", ", 1, 1, 0")
LLMC_WGMMA_N(f16, float, "+f", "k16", "f32.f16.f16", ", 1, 1, 0, 0", ", 1, 1, 0")
LLMC_WGMMA_N(e4m3, float, "+f", "k32", "f32.e4m3.e4m3", ", 1, 1", ", 1, 1")
LLMC_WGMMA_N(s8, int, "+r", "k32", "s32.s8.s8", "", "")
template <class T, class Acc, int R>
LLMC_DEVICE void wgmma_ss(Acc (&d)[R], u64 a, u64 b, bool accumulate) { Wgmma<T, R>::ss(d, a, b, accumulate); }
template <class T, class Acc, int R>
LLMC_DEVICE void wgmma_rs(Acc (&d)[R], const u32 (&a)[4], u64 b, bool accumulate) { Wgmma<T, R>::rs(d, a, b, accumulate); }
#endif
#endif  // LLMC_EMU

// --- built from the above, the same on both sides ----------------------------------------------------------
// Of equal ones, and where b is a NaN, a.
template <class T>
LLMC_DEVICE constexpr T min_of(T a, T b) { return b < a ? b : a; }
template <class T>
LLMC_DEVICE constexpr T max_of(T a, T b) { return b > a ? b : a; }
// Sum and maximum over a warp, in one fixed order; every lane gets the result.
LLMC_DEVICE float warp_sum(float v) {
  LLMC_UNROLL
  for (int bit = 16; bit; bit >>= 1) v += __shfl_xor_sync(0xffffffffu, v, bit);
  return v;
}
// Sums four values over the warp in six shuffles instead of twenty; lane l returns the sum of v[l / 8].
LLMC_DEVICE float warp_sum4(const float (&v)[4]) {
  const int lane = threadIdx.x & 31;
  const bool upper = lane & 16, odd = lane & 8;
  const float a = (upper ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, upper ? v[0] : v[2], 16);
  const float b = (upper ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, upper ? v[1] : v[3], 16);
  float sum = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
  LLMC_UNROLL
  for (int bit = 4; bit; bit >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  return sum;
}
LLMC_DEVICE float warp_max(float v) {
  LLMC_UNROLL
  for (int bit = 16; bit; bit >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, v, bit);
    v = other > v ? other : v;
  }
  return v;
}
LLMC_DEVICE float bf16_lo(u32 pair) { return to_f32(bf16{(unsigned short)(pair & 0xffff)}); }
LLMC_DEVICE float bf16_hi(u32 pair) { return to_f32(bf16{(unsigned short)(pair >> 16)}); }
// wgmma descriptor of a K-major operand in rows of 128 swizzled bytes, 8-row groups 1024 bytes apart.
LLMC_DEVICE u64 wgmma_desc_sw128(u32 addr) {
  return u64((addr & 0x3ffff) >> 4) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
