// matrix.cpp - ldmatrix and mma.sync (PTX ISA, warp level matrix instructions: layouts of m8n8, m16n8k16, m16n8k32).
#include "primitives.h"
#include "products.h"

namespace emu {

namespace {

struct LdmatrixArg { u32* regs; u32 addr; u32 num; bool trans; Site at; };

// Lane 8*m + i gives the address of row i of matrix m; lane 4*g + t receives elements (g, 2t) and (g, 2t+1), transposed
// (2t, g) and (2t+1, g).
void exec_ldmatrix(void** args, u32) {
  Fiber& f = me();
  Block& b = *f.block;
  const auto& first = *static_cast<LdmatrixArg*>(args[0]);
  for (u32 m = 0; m < first.num; m++) {
    const u8* rows[8];
    for (u32 i = 0; i < 8; i++) {
      const auto& lane = *static_cast<LdmatrixArg*>(args[m * 8 + i]);
      if (lane.addr % 16) fail(Fault::misaligned, where_of(lane.at), text("ldmatrix: row address 0x%x is not 16-byte aligned", lane.addr));
      rows[i] = smem_at(b, lane.addr, 16, lane.at);
      if (b.checked()) race_access(b, rows[i], 16, {0, where_of(lane.at), f.warp * 32 + m * 8 + i});
    }
    for (u32 l = 0; l < 32; l++) {
      const u32 g = l >> 2, t = l & 3;
      u32& reg = static_cast<LdmatrixArg*>(args[l])->regs[m];
      if (!first.trans) {
        std::memcpy(&reg, rows[g] + t * 4, 4);
      } else {
        u16 pair[2];
        std::memcpy(&pair[0], rows[t * 2] + g * 2, 2);
        std::memcpy(&pair[1], rows[t * 2 + 1] + g * 2, 2);
        std::memcpy(&reg, pair, 4);
      }
    }
  }
}

struct MmaArg { void* c; const u32* a; const u32* b; Mma kind; };

// Lane 4*g + t holds, of A, rows g and g + 8 at bytes 4t.. of both halves of K; of B, column g there; of C, columns 2t and
// 2t + 1 of rows g and g + 8. A row of A and a column of B are 32 bytes of any format.
template <class T, u32 K>
void multiply(void** args, Mma kind) {
  u32 a_bits[16][8], b_bits[8][8];
  T a[16 * K], w[K * 8], c[16][8];
  for (u32 l = 0; l < 32; l++) {
    const auto& x = *static_cast<MmaArg*>(args[l]);
    const u32 g = l >> 2, t = l & 3;
    for (u32 r = 0; r < 4; r++) a_bits[g + (r & 1) * 8][t + (r >> 1) * 4] = x.a[r];
    for (u32 r = 0; r < 2; r++) b_bits[g][t + r * 4] = x.b[r];
    for (u32 h = 0; h < 2; h++) std::memcpy(&c[g + h * 8][t * 2], static_cast<T*>(x.c) + h * 2, 2 * sizeof(T));
  }
  for (u32 half = 0; half < 2; half++) {
    for (u32 i = 0; i < 16; i++) decode(kind, reinterpret_cast<u8*>(&a_bits[i][half * 4]), a + i * K + half * K / 2, 1);
    for (u32 j = 0; j < 8; j++) decode(kind, reinterpret_cast<u8*>(&b_bits[j][half * 4]), w + half * K / 2 * 8 + j, 8);
  }
  add_product<K>(a, w, 8, c[0], 8);
  add_product<K>(a + 8 * K, w, 8, c[8], 8);
  for (u32 l = 0; l < 32; l++) {
    const u32 g = l >> 2, t = l & 3;
    for (u32 h = 0; h < 2; h++)
      std::memcpy(static_cast<T*>(static_cast<MmaArg*>(args[l])->c) + h * 2, &c[g + h * 8][t * 2], 2 * sizeof(T));
  }
}

void exec_mma(void** args, u32) {
  switch (static_cast<MmaArg*>(args[0])->kind) {
    case Mma::bf16: return multiply<float, 16>(args, Mma::bf16);
    case Mma::f16: return multiply<float, 16>(args, Mma::f16);
    case Mma::e4m3: return multiply<float, 32>(args, Mma::e4m3);
    case Mma::s8: return multiply<i32, 32>(args, Mma::s8);
  }
}

}  // namespace

void ldmatrix(u32* regs, u32 num, bool trans, u32 addr, Site at) {
  LdmatrixArg arg{regs, addr, num, trans, at};
  warp_op(~0u, trans ? "ldmatrix.trans" : "ldmatrix", true, &arg, exec_ldmatrix, at);
}

void mma(Mma kind, void* c, const u32* a, const u32* b, Site at) {
  static const char* names[] = {"mma.f16", "mma.bf16", "mma.e4m3", "mma.s8"};
  MmaArg arg{c, a, b, kind};
  warp_op(~0u, names[u32(kind)], true, &arg, exec_mma, at);
}

}  // namespace emu
