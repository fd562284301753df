// oracle_kernels.cuh - one kernel around each primitive whose registers or shared memory have a layout; the test behind
// it (test_cute_oracle.py) lays operands out by CuTe's tables.
#pragma once
#include "device.cuh"

#define FRAGMENT(T, Acc)                                             \
  LLMC_KERNEL(32, 1) frag_##T(const u32* a, const u32* b, Acc* c) {  \
    const int t = threadIdx.x;                                       \
    u32 x[4] = {a[t * 4], a[t * 4 + 1], a[t * 4 + 2], a[t * 4 + 3]}; \
    Acc d[4] = {};                                                   \
    mma_##T(d, x, b[t * 2], b[t * 2 + 1]);                           \
    for (int i = 0; i < 4; i++) c[t * 4 + i] = d[i];                 \
  }                                                                  \
  LLMC_EXPORT(frag_##T)

// Each lane names its own 16 bytes of 512.
#define LDMATRIX(name, load)                                                               \
  LLMC_KERNEL(32, 1) name(const u32* rows, u32* to) {                                      \
    LLMC_SMEM(raw);                                                                        \
    const int t = threadIdx.x;                                                             \
    for (int i = t; i < 128; i += 32) reinterpret_cast<u32*>(raw)[i] = rows[i];            \
    __syncwarp();                                                                          \
    u32 r[4];                                                                              \
    load(r, smem_addr(raw) + t * 16);                                                      \
    for (int i = 0; i < 4; i++) to[t * 4 + i] = r[i];                                      \
  }                                                                                        \
  LLMC_EXPORT(name)

#if defined(LLMC_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
LLMC_DEVICE void copy_in(unsigned char* to, const u32* from, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += 128) reinterpret_cast<u32*>(to)[i] = from[i];
}
LLMC_DEVICE u64 at(u64 desc, u32 address) { return desc | u64((address & 0x3ffff) >> 4); }

// 64 rows of A and N of B, 128 bytes each, as images of shared memory. `desc` of address 0; steps: where each of four
// steps of 32 bytes of K begins in A, then in B.
template <class T, class Acc, int N>
LLMC_DEVICE void from_shared(const u32* a, const u32* b, Acc* c, u64 desc, const int* steps) {
  LLMC_SMEM(raw);
  copy_in(raw, a, 64 * 128);
  copy_in(raw + 64 * 128, b, N * 128);
  fence_proxy_async();
  __syncthreads();
  const u32 smem = smem_addr(raw);
  Acc d[N / 2] = {};
  wgmma_fence();
  for (int k = 0; k < 4; k++)
    wgmma_ss<T>(d, at(desc, smem + steps[k]), at(desc, smem + 64 * 128 + steps[4 + k]), k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; i++) c[threadIdx.x * (N / 2) + i] = d[i];
}

// The same with A in registers: four words of each thread for each step.
template <class T, class Acc, int N>
LLMC_DEVICE void from_registers(const u32* a, const u32* b, Acc* c, u64 desc, const int* steps) {
  LLMC_SMEM(raw);
  copy_in(raw, b, N * 128);
  fence_proxy_async();
  __syncthreads();
  const int t = threadIdx.x;
  const u32 smem = smem_addr(raw);
  u32 x[4][4];
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 4; i++) x[k][i] = a[(k * 128 + t) * 4 + i];
  Acc d[N / 2] = {};
  wgmma_fence();
  for (int k = 0; k < 4; k++) wgmma_rs<T>(d, x[k], at(desc, smem + steps[k]), k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; i++) c[t * (N / 2) + i] = d[i];
}

#define WGMMA(T, Acc, N)                                                                                                  \
  LLMC_KERNEL(128, 1) ss_##T##_##N(const u32* a, const u32* b, Acc* c, u64 desc, const int* steps) {                      \
    from_shared<T, Acc, N>(a, b, c, desc, steps);                                                                         \
  }                                                                                                                       \
  LLMC_EXPORT(ss_##T##_##N)                                                                                               \
  LLMC_KERNEL(128, 1) rs_##T##_##N(const u32* a, const u32* b, Acc* c, u64 desc, const int* steps) {                      \
    from_registers<T, Acc, N>(a, b, c, desc, steps);                                                                      \
  }                                                                                                                       \
  LLMC_EXPORT(rs_##T##_##N)

// The descriptor that kernels make themselves.
LLMC_KERNEL(32, 1) descriptor(u64* to) {
  if (threadIdx.x == 0) *to = wgmma_desc_sw128(0);
}
LLMC_EXPORT(descriptor)

// A box of rows of 128 bytes, as TMA leaves it in shared memory.
LLMC_KERNEL(128, 1) tma(const __grid_constant__ TensorMap map, u32* to, int bytes) {
  LLMC_SMEM(raw);
  const u32 smem = smem_addr(raw), bar = smem + bytes;
  if (threadIdx.x == 0) {
    mbar_init(bar, 1);
    mbar_fence_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbar_expect_tx(bar, bytes);
    tma_load_2d(smem, &map, bar, 0, 0);
  }
  mbar_wait(bar, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += 128) to[i] = reinterpret_cast<u32*>(raw)[i];
}
LLMC_EXPORT(tma)
#endif
