// device.h - the CPU meaning of every primitive of templates/cuda/device.cuh. Same names, same arguments;
// a trailing `Site` records the caller's line for reports. The PTX side states each primitive's contract.
#pragma once
#include "types.h"

struct alignas(8) Vec8 { u32 x[2]; };
struct alignas(16) Vec16 { u32 x[4]; };
struct alignas(64) TensorMap { unsigned char opaque[128]; };

namespace emu {
template <class T> struct MmaKind;
template <> struct MmaKind<f16> { static constexpr Mma value = Mma::f16; };
template <> struct MmaKind<bf16> { static constexpr Mma value = Mma::bf16; };
template <> struct MmaKind<e4m3> { static constexpr Mma value = Mma::e4m3; };
template <> struct MmaKind<s8> { static constexpr Mma value = Mma::s8; };

template <int R>
constexpr bool kWgmmaRegisters = R == 4 || R == 8 || R == 16 || R == 32 || R == 64 || R == 96 || R == 128;

template <class T>
LLMC_NO_HOOKS inline T checked_load(const void* p, Site at) {
  llmc_emu_rt->access(p, sizeof(T), Access::read, at);
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
template <class T>
LLMC_NO_HOOKS inline void checked_store(void* p, const T& v, Site at) {
  llmc_emu_rt->access(p, sizeof(T), Access::write, at);
  std::memcpy(p, &v, sizeof(T));
}
}  // namespace emu

// --- global memory -----------------------------------------------------------------------------------
inline Vec16 load16(const void* p, Site at = Site::here()) { return emu::checked_load<Vec16>(p, at); }
inline Vec16 load16_stream(const void* p, Site at = Site::here()) { return emu::checked_load<Vec16>(p, at); }
inline void store16(void* p, const Vec16& v, Site at = Site::here()) { emu::checked_store(p, v, at); }
inline Vec8 load8(const void* p, Site at = Site::here()) { return emu::checked_load<Vec8>(p, at); }
inline void store8(void* p, const Vec8& v, Site at = Site::here()) { emu::checked_store(p, v, at); }
inline u32 load4(const void* p, Site at = Site::here()) { return emu::checked_load<u32>(p, at); }
inline void store4(void* p, u32 v, Site at = Site::here()) { emu::checked_store(p, v, at); }

// --- shared memory, asynchronous copies (cp.async) ----------------------------------------------
inline u32 smem_addr(const void* p, Site at = Site::here()) { return llmc_emu_rt->smem_offset(p, at); }
inline void cp_async16(u32 dst, const void* src, bool valid = true, Site at = Site::here()) {
  llmc_emu_rt->cp_async(dst, src, 16, valid ? 16 : 0, at);
}
inline void cp_async16_head(u32 dst, const void* src, int bytes, Site at = Site::here()) {
  llmc_emu_rt->cp_async(dst, src, 16, u32(bytes), at);
}
inline void cp_async_commit(Site at = Site::here()) { llmc_emu_rt->cp_async_commit(at); }
template <int N>
inline void cp_async_wait(Site at = Site::here()) { llmc_emu_rt->cp_async_wait(N, at); }

// --- warp matrix operations (ldmatrix, mma) -----------------------------------------------------------------
// The registers are stored here, in the kernel, where a row beyond the end of an array of fragments traps.
inline void ldmatrix_x4(u32 (&r)[4], u32 addr, Site at = Site::here()) {
  u32 loaded[4];
  llmc_emu_rt->ldmatrix(loaded, 4, false, addr, at);
  for (int i = 0; i < 4; i++) r[i] = loaded[i];
}
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 addr, Site at = Site::here()) {
  u32 loaded[4];
  llmc_emu_rt->ldmatrix(loaded, 4, true, addr, at);
  for (int i = 0; i < 4; i++) r[i] = loaded[i];
}
inline void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, Site at = Site::here()) {
  const u32 b[2] = {b0, b1};
  llmc_emu_rt->mma(emu::Mma::bf16, c, a, b, at);
}
inline void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, Site at = Site::here()) {
  const u32 b[2] = {b0, b1};
  llmc_emu_rt->mma(emu::Mma::f16, c, a, b, at);
}
inline void mma_e4m3(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, Site at = Site::here()) {
  const u32 b[2] = {b0, b1};
  llmc_emu_rt->mma(emu::Mma::e4m3, c, a, b, at);
}
inline void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, Site at = Site::here()) {
  const u32 b[2] = {b0, b1};
  llmc_emu_rt->mma(emu::Mma::s8, c, a, b, at);
}

// A twin that checks nothing takes a warp's whole product as one operation, where a GPU takes tens of instructions.
template <class T, int ROWS, int COLUMNS, int STEPS, class A, class B>
inline bool multiply_at_once(float (&c)[ROWS * COLUMNS][4], const A& a_at, const B& b_at, Site at = Site::here()) {
#ifdef LLMC_EMU_CHECKED
  return false;
#else
  static_assert(sizeof(T) == 2 && STEPS * COLUMNS % 2 == 0, "two fragments of B in a load");
  u32 a[STEPS * ROWS], b[STEPS * COLUMNS / 2];
  for (int i = 0; i < STEPS * ROWS; i++) a[i] = a_at(i / ROWS, i % ROWS);
  for (int n = 0; n < STEPS * COLUMNS / 2; n++) b[n] = b_at(n);
  llmc_emu_rt->multiply_shared({emu::MmaKind<T>::value, ROWS, COLUMNS, STEPS, c[0], a, b}, at);
  return true;
#endif
}

// --- mbarrier and TMA --------------------------------------------------------------
inline void mbar_init(u32 bar, u32 count, Site at = Site::here()) { llmc_emu_rt->mbar_init(bar, count, at); }
inline void mbar_fence_init(Site at = Site::here()) { llmc_emu_rt->fence_mbar_init(at); }
inline void mbar_arrive(u32 bar, Site at = Site::here()) { llmc_emu_rt->mbar_arrive(bar, 0, false, at); }
inline void mbar_expect_tx(u32 bar, u32 bytes, Site at = Site::here()) {
  llmc_emu_rt->mbar_arrive(bar, bytes, true, at);
}
inline void mbar_wait(u32 bar, u32 parity, Site at = Site::here()) { llmc_emu_rt->mbar_wait(bar, parity, at); }
inline void fence_proxy_async(Site at = Site::here()) { llmc_emu_rt->fence_proxy_async(at); }

inline void tma_load_1d(u32 dst, const TensorMap* map, u32 bar, i32 x, Site at = Site::here()) {
  const i32 c[1] = {x};
  llmc_emu_rt->tma_load(dst, map, bar, 1, c, at);
}
inline void tma_load_2d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, Site at = Site::here()) {
  const i32 c[2] = {x, y};
  llmc_emu_rt->tma_load(dst, map, bar, 2, c, at);
}
inline void tma_load_3d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, i32 z, Site at = Site::here()) {
  const i32 c[3] = {x, y, z};
  llmc_emu_rt->tma_load(dst, map, bar, 3, c, at);
}
inline void tma_store_1d(const TensorMap* map, u32 src, i32 x, Site at = Site::here()) {
  const i32 c[1] = {x};
  llmc_emu_rt->tma_store(map, src, 1, c, at);
}
inline void tma_store_2d(const TensorMap* map, u32 src, i32 x, i32 y, Site at = Site::here()) {
  const i32 c[2] = {x, y};
  llmc_emu_rt->tma_store(map, src, 2, c, at);
}
inline void tma_store_3d(const TensorMap* map, u32 src, i32 x, i32 y, i32 z, Site at = Site::here()) {
  const i32 c[3] = {x, y, z};
  llmc_emu_rt->tma_store(map, src, 3, c, at);
}
inline void tma_commit(Site at = Site::here()) { llmc_emu_rt->tma_commit(at); }
template <int N>
inline void tma_wait_read(Site at = Site::here()) { llmc_emu_rt->tma_wait(N, true, at); }
template <int N>
inline void tma_wait(Site at = Site::here()) { llmc_emu_rt->tma_wait(N, false, at); }

// --- warpgroup matrix operations (wgmma) --------------------------------------------------------------
inline void wgmma_fence(Site at = Site::here()) { llmc_emu_rt->wgmma_fence(at); }
inline void wgmma_commit(Site at = Site::here()) { llmc_emu_rt->wgmma_commit(at); }
template <int N>
inline void wgmma_wait(Site at = Site::here()) { llmc_emu_rt->wgmma_wait(N, at); }
template <class T, class Acc, int R>
inline void wgmma_ss(Acc (&d)[R], u64 desc_a, u64 desc_b, bool accumulate, Site at = Site::here()) {
  static_assert(emu::kWgmmaRegisters<R>, "N = 2R must be 8, 16, 32, 64, 128, 192 or 256");
  llmc_emu_rt->wgmma(emu::MmaKind<T>::value, 2 * R, d, nullptr, desc_a, desc_b, accumulate, at);
}
template <class T, class Acc, int R>
inline void wgmma_rs(Acc (&d)[R], const u32 (&a)[4], u64 desc_b, bool accumulate, Site at = Site::here()) {
  static_assert(emu::kWgmmaRegisters<R>, "N = 2R must be 8, 16, 32, 64, 128, 192 or 256");
  llmc_emu_rt->wgmma(emu::MmaKind<T>::value, 2 * R, d, a, 0, desc_b, accumulate, at);
}
template <int N>
inline void setmaxnreg_inc(Site at = Site::here()) { llmc_emu_rt->setmaxnreg(N, true, at); }
template <int N>
inline void setmaxnreg_dec(Site at = Site::here()) { llmc_emu_rt->setmaxnreg(N, false, at); }

// --- barriers, atomics, launches ---------------------------------------------------------------------
inline void named_barrier_sync(u32 id, u32 threads, Site at = Site::here()) {
  llmc_emu_rt->barrier_sync(id, threads, at);
}
inline void named_barrier_arrive(u32 id, u32 threads, Site at = Site::here()) {
  llmc_emu_rt->barrier_arrive(id, threads, at);
}
inline u32 atomic_add(u32* p, u32 v, Site at = Site::here()) {
  return llmc_emu_rt->atomic_u32(p, v, emu::Rmw::add, at);
}
inline u32 smem_atomic_add(u32 addr, u32 v, Site at = Site::here()) {
  return llmc_emu_rt->atomic_u32(reinterpret_cast<u32*>(emu::self().smem + addr), v, emu::Rmw::add, at);
}
inline u32 atomic_max(u32* p, u32 v, Site at = Site::here()) {
  return llmc_emu_rt->atomic_u32(p, v, emu::Rmw::max, at);
}
inline u32 atomic_exchange(u32* p, u32 v, Site at = Site::here()) {
  return llmc_emu_rt->atomic_u32(p, v, emu::Rmw::exchange, at);
}
inline float atomic_add(float* p, float v, Site at = Site::here()) {
  return llmc_emu_rt->atomic_add_f32(p, v, at);
}
inline u32 load_acquire(const u32* p, Site at = Site::here()) { return llmc_emu_rt->load_acquire(p, at); }
inline void store_release(u32* p, u32 v, Site at = Site::here()) { llmc_emu_rt->store_release(p, v, at); }
inline void grid_wait(Site at = Site::here()) { llmc_emu_rt->grid_wait(at); }
inline void grid_launch_dependents(Site at = Site::here()) { llmc_emu_rt->grid_launch_dependents(at); }
