// Writes CuTe's own layouts as tables to a file: "name: i0 i1 i2 ...". Compiled against the CUTLASS headers (test
// extra), never linked with anything of ours: an independent witness for fragments, accumulators, swizzles, descriptors.
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm89.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/pointer_flagged.hpp>
#include <cute/tensor.hpp>
#include <cstdio>
#include <string>

using namespace cute;

std::FILE* out;  // not stdout: CuTe complains there that a host has no shared memory

// (thread, value) -> row + column * rows
template <class Layout>
void fragment(const std::string& name, Layout layout) {
  std::fprintf(out, "%s:", name.c_str());
  for (int t = 0; t < size<0>(layout); t++)
    for (int v = 0; v < size<1>(layout); v++) std::fprintf(out, " %d", int(layout(t, v)));
  std::fprintf(out, "\n");
}

template <class Op>
void mma(const std::string& name) {
  using T = MMA_Traits<Op>;
  fragment(name + ".A", typename T::ALayout{});
  fragment(name + ".B", typename T::BLayout{});
  fragment(name + ".C", typename T::CLayout{});
}

// (thread, bit of what it got) -> bit of what the 32 threads' addresses hold, one behind the other
template <class Op>
void ldmatrix(const std::string& name) {
  fragment(name, typename Copy_Traits<Op>::DstLayout{});
}

// (row, k) -> byte offset in a tile of N rows of 128 bytes; and the descriptor of its first 32 bytes of K, at address 0
template <class T, int N, class Atom>
void tile(const std::string& name, Atom atom) {
  constexpr int kWidth = 128 / sizeof(T);
  const auto whole = tile_to_shape(atom, make_shape(Int<N>{}, Int<kWidth>{}));
  const auto place = as_position_independent_swizzle_layout(whole);
  std::fprintf(out, "%s:", name.c_str());
  for (int r = 0; r < N; r++)
    for (int k = 0; k < kWidth; k++) std::fprintf(out, " %d", int(place(r, k) * sizeof(T)));
  const auto operand = make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), whole);
  const auto step = local_tile(operand, make_shape(Int<N>{}, Int<32 / sizeof(T)>{}), make_coord(0, 0));
  std::fprintf(out, "\n%s.desc: %lld\n", name.c_str(), (long long)(uint64_t)SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::K>(step));
}

template <class T, int N>
void tiles(const std::string& kind) {
  const std::string rest = "." + kind + "." + std::to_string(N);
  tile<T, N>("sw128" + rest, SM90::GMMA::Layout_K_SW128_Atom<T>{});
  tile<T, N>("sw64" + rest, SM90::GMMA::Layout_K_SW64_Atom<T>{});
  tile<T, N>("sw32" + rest, SM90::GMMA::Layout_K_SW32_Atom<T>{});
}

constexpr auto K = SM90::GMMA::Major::K;
template <class T, int N, class Shared, class Registers>
void wgmma(const std::string& kind) {
  const std::string name = "wgmma." + kind + "." + std::to_string(N);
  fragment(name + ".C", typename MMA_Traits<Shared>::CLayout{});
  fragment(name + ".A", typename MMA_Traits<Registers>::ALayout{});
  tiles<T, N>(kind);
}
#define ALL_KINDS(N)                                                                                             \
  wgmma<bfloat16_t, N, SM90_64x##N##x16_F32BF16BF16_SS<K, K>, SM90_64x##N##x16_F32BF16BF16_RS<K, K>>("bf16");    \
  wgmma<half_t, N, SM90_64x##N##x16_F32F16F16_SS<K, K>, SM90_64x##N##x16_F32F16F16_RS<K, K>>("f16");             \
  wgmma<float_e4m3_t, N, SM90_64x##N##x32_F32E4M3E4M3_SS_TN<>, SM90_64x##N##x32_F32E4M3E4M3_RS_TN<>>("e4m3");    \
  wgmma<int8_t, N, SM90_64x##N##x32_S32S8S8_SS_TN, SM90_64x##N##x32_S32S8S8_RS_TN>("s8");

int main(int, char** argv) {
  out = std::fopen(argv[1], "w");
  if (!out) return 1;
  mma<SM80_16x8x16_F32BF16BF16F32_TN>("bf16");
  mma<SM80_16x8x16_F32F16F16F32_TN>("f16");
  mma<SM80_16x8x32_S32S8S8S32_TN>("s8");
  mma<SM89_16x8x32_F32E4M3E4M3F32_TN>("e4m3");
  ldmatrix<SM75_U32x4_LDSM_N>("ldmatrix");
  ldmatrix<SM75_U16x8_LDSM_T>("ldmatrix_trans");
  ALL_KINDS(8)
  ALL_KINDS(16)
  ALL_KINDS(32)
  ALL_KINDS(64)
  ALL_KINDS(128)
  ALL_KINDS(192)
  ALL_KINDS(256)
  return std::fclose(out);
}
