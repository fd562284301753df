#include "products.h"
#include "wgmma_operand.h"

namespace emu {

namespace {

constexpr u32 kMaxN = 256;

template <class T, u32 K>
void product(const Block& b, const WgmmaOp& op) {
  T a[64 * K];
  alignas(32) T w[K * kMaxN];
  const u32 per_chunk = 16 / element_bytes(op.kind);
  auto chunk = [&](u32 at) { return at / 16 * per_chunk; };  // the first element of the chunk at byte `at` along K
  if (op.a_in_regs) {
    for (u32 row = 0; row < 64; row++)
      for (u32 half = 0; half < 2; half++) {  // four threads hold a row: register 0 or 1 its first half of K, 2 or 3 the other
        u32 bits[4];
        for (u32 t = 0; t < 4; t++) bits[t] = op.a_regs[(row / 16 * 32 + row % 8 * 4 + t) * 4 + row % 16 / 8 + half * 2];
        decode(op.kind, reinterpret_cast<u8*>(bits), a + row * K + half * K / 2, 1);
      }
  } else {
    Operand(op.desc_a).each_chunk(64, [&](u32 row, u32 at, u32 address) {
      decode(op.kind, b.smem + address, a + row * K + chunk(at), 1);
    });
  }
  Operand(op.desc_b).each_chunk(op.n, [&](u32 row, u32 at, u32 address) {
    decode(op.kind, b.smem + address, w + chunk(at) * op.n + row, op.n);
  });
  auto* c = reinterpret_cast<T*>(op.acc->tile.data());
  if (!op.accumulate) std::fill(c, c + size_t(64) * op.n, T(0));
  for (u32 i = 0; i < 64; i += 8)
    for (u32 j = 0; j < op.n; j += 8) add_product(K, a + i * K, w + j, op.n, c + i * op.n + j, op.n);
}

}  // namespace

void multiply(Block& b, WgmmaOp& op) {
  if (op.executed) return;
  op.executed = true;
  switch (op.kind) {
    case Mma::bf16: case Mma::f16: return product<float, 16>(b, op);
    case Mma::e4m3: return product<float, 32>(b, op);
    case Mma::s8: return product<i32, 32>(b, op);
  }
}

}  // namespace emu
