// Prints CuTe's own layouts as tables: "name: i0 i1 i2 ...". Compiled against the CUTLASS headers (test extra),
// never linked with anything of ours: an independent witness for fragment, accumulator and swizzle maps.
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm89.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/pointer_flagged.hpp>
#include <cute/tensor.hpp>
#include <cstdio>

using namespace cute;

// (thread, value) -> row + column * rows
template <class Layout>
void fragment(const char* name, Layout layout, int threads, int values) {
  std::printf("%s:", name);
  for (int t = 0; t < threads; t++)
    for (int v = 0; v < values; v++) std::printf(" %d", int(layout(t, v)));
  std::printf("\n");
}

template <class Op>
void mma(const char* name, int a_values, int b_values) {
  using T = MMA_Traits<Op>;
  char label[64];
  std::snprintf(label, sizeof label, "%s.A", name), fragment(label, typename T::ALayout{}, 32, a_values);
  std::snprintf(label, sizeof label, "%s.B", name), fragment(label, typename T::BLayout{}, 32, b_values);
  std::snprintf(label, sizeof label, "%s.C", name), fragment(label, typename T::CLayout{}, 32, 4);
}

// (row, k) -> byte offset of a 64 x 64 tile of 2-byte elements
template <class Atom>
void swizzle(const char* name, Atom atom) {
  auto tile = as_position_independent_swizzle_layout(tile_to_shape(atom, make_shape(Int<64>{}, Int<64>{})));
  std::printf("%s:", name);
  for (int r = 0; r < 64; r++)
    for (int k = 0; k < 64; k++) std::printf(" %d", int(tile(r, k)) * 2);
  std::printf("\n");
}

int main() {
  mma<SM80_16x8x16_F32BF16BF16F32_TN>("bf16", 8, 4);
  mma<SM80_16x8x16_F32F16F16F32_TN>("f16", 8, 4);
  mma<SM80_16x8x32_S32S8S8S32_TN>("s8", 16, 8);
  mma<SM89_16x8x32_F32E4M3E4M3F32_TN>("e4m3", 16, 8);
  fragment("wgmma64.C", SM90::GMMA::CLayout_64x64{}, 128, 32);
  fragment("wgmma256.C", SM90::GMMA::CLayout_64x256{}, 128, 128);
  fragment("wgmma.A16", SM90::GMMA::ALayout_64x16{}, 128, 8);
  fragment("wgmma.A8", SM90::GMMA::ALayout_64x32{}, 128, 16);
  swizzle("sw128", SM90::GMMA::Layout_K_SW128_Atom<bfloat16_t>{});
  swizzle("sw64", SM90::GMMA::Layout_K_SW64_Atom<bfloat16_t>{});
  swizzle("sw32", SM90::GMMA::Layout_K_SW32_Atom<bfloat16_t>{});
}
