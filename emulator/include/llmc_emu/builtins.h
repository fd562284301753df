// builtins.h - the CUDA language surface that house kernels use, for a C++17 host compiler.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "abi.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define LLMC_NO_HOOKS __attribute__((no_sanitize("thread")))

extern "C" {
extern __attribute__((visibility("default"), weak)) const emu::Runtime* llmc_emu_rt;
extern __attribute__((visibility("default"), weak)) const emu::u32 llmc_emu_abi;
const emu::Runtime* llmc_emu_rt = nullptr;
const emu::u32 llmc_emu_abi = emu::kAbiVersion;
}

#define threadIdx (emu::self().tid)
#define blockIdx (emu::self().bid)
#define blockDim (emu::self().bdim)
#define gridDim (emu::self().gdim)

using emu::Site;

inline void __syncthreads(Site at = Site::here()) { llmc_emu_rt->barrier_sync(0, 0, at); }
inline void __syncwarp(unsigned mask = ~0u, Site at = Site::here()) { llmc_emu_rt->syncwarp(mask, at); }
inline void __threadfence(Site at = Site::here()) { llmc_emu_rt->threadfence(at); }

namespace emu {

template <class T>
struct ShuffleArg {
  T value;
  i32 source;
  T result;
};

// A source lane that did not take part leaves the reader's value undefined in CUDA; here it is poisoned.
template <class T>
LLMC_NO_HOOKS void exec_shuffle(void** args, u32 mask) {
  for (u32 lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    auto* mine = static_cast<ShuffleArg<T>*>(args[lane]);
    const i32 s = mine->source;
    if (s < 0 || s > 31) mine->result = mine->value;
    else if (mask >> s & 1) mine->result = static_cast<ShuffleArg<T>*>(args[s])->value;
    else std::memset(&mine->result, 0xFF, sizeof(T));
  }
}

template <class T>
LLMC_NO_HOOKS T shuffle(u32 mask, T value, i32 source, const char* name, Site at) {
  ShuffleArg<T> arg{value, source, T()};
  llmc_emu_rt->warp_op(mask, name, false, &arg, exec_shuffle<T>, at);
  return arg.result;
}

struct BallotArg {
  bool predicate;
  u32 result;
};

LLMC_NO_HOOKS inline void exec_ballot(void** args, u32 mask) {
  u32 bits = 0;
  for (u32 lane = 0; lane < 32; lane++)
    if ((mask >> lane & 1) && static_cast<BallotArg*>(args[lane])->predicate) bits |= 1u << lane;
  for (u32 lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) static_cast<BallotArg*>(args[lane])->result = bits;
}

template <class... A>
struct ParamBytes {
  static constexpr u32 value[sizeof...(A) + 1] = {u32(sizeof(std::remove_reference_t<A>))..., 0};
};
template <class... A>
constexpr const u32* param_bytes(void (*)(A...)) { return ParamBytes<A...>::value; }
template <class... A>
constexpr u32 num_params(void (*)(A...)) { return sizeof...(A); }

template <class... A, size_t... I>
LLMC_NO_HOOKS void invoke_with(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<std::remove_reference_t<A>>*>(params[I])...);
}
template <class... A>
LLMC_NO_HOOKS void invoke(void (*kernel)(A...), void** params) {
  invoke_with(kernel, params, std::index_sequence_for<A...>{});
}

}  // namespace emu

template <class T>
inline T __shfl_sync(unsigned mask, T v, int lane, Site at = Site::here()) {
  return emu::shuffle(mask, v, lane & 31, "shfl.idx", at);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int bits, Site at = Site::here()) {
  return emu::shuffle(mask, v, static_cast<int>(emu::self().lane) ^ bits, "shfl.bfly", at);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, int delta, Site at = Site::here()) {
  return emu::shuffle(mask, v, static_cast<int>(emu::self().lane) + delta, "shfl.down", at);
}
LLMC_NO_HOOKS inline unsigned __ballot_sync(unsigned mask, int predicate, Site at = Site::here()) {
  emu::BallotArg arg{predicate != 0, 0};
  llmc_emu_rt->warp_op(mask, "vote.ballot", false, &arg, emu::exec_ballot, at);
  return arg.result;
}
template <class T>
__forceinline__ T min(T a, T b) { return b < a ? b : a; }
template <class T>
__forceinline__ T max(T a, T b) { return a < b ? b : a; }

// A kernel is an extern "C" function; LLMC_EXPORT makes it findable in the twin.
#define LLMC_KERNEL(threads, blocks_per_sm) extern "C" void
#define LLMC_EXPORT(kernel)                                                                       \
  extern "C" __attribute__((visibility("default"))) const emu::KernelEntry llmc_kernel_##kernel = \
      {#kernel, emu::param_bytes(kernel), emu::num_params(kernel),                                \
       [](void** params) LLMC_NO_HOOKS { emu::invoke(kernel, params); }};
#define LLMC_SMEM(name) unsigned char* name = emu::self().smem
