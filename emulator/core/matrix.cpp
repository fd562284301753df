// matrix.cpp - ldmatrix and mma.sync (PTX ISA, warp level matrix instructions: layouts of m8n8, m16n8k16, m16n8k32).
#include <cstring>

#include "../include/llmc_emu/formats.h"
#include "primitives.h"

namespace emu {

namespace {

struct LdmatrixArg { u32* regs; u32 addr; u32 num; bool trans; Where where; };

// Lane 8*m + i gives the address of row i of matrix m; lane 4*g + t receives elements (g, 2t) and (g, 2t+1).
void exec_ldmatrix(void** args, u32) {
  Fiber& f = me();
  Block& b = *f.block;
  const auto& first = *static_cast<LdmatrixArg*>(args[0]);
  for (u32 m = 0; m < first.num; m++) {
    u16 matrix[8][8];
    for (u32 i = 0; i < 8; i++) {
      const auto& lane = *static_cast<LdmatrixArg*>(args[m * 8 + i]);
      if (lane.addr % 16) fail(Fault::misaligned, lane.where, text("ldmatrix: row address 0x%x is not 16-byte aligned", lane.addr));
      const u8* row = smem_at(b, lane.addr, 16, lane.where);
      if (b.checked()) race_access(b, row, 16, {0, lane.where, f.warp * 32 + m * 8 + i});
      std::memcpy(matrix[i], row, 16);
    }
    for (u32 l = 0; l < 32; l++) {
      const u32 g = l >> 2, t = l & 3;
      const u16 lo = first.trans ? matrix[t * 2][g] : matrix[g][t * 2];
      const u16 hi = first.trans ? matrix[t * 2 + 1][g] : matrix[g][t * 2 + 1];
      static_cast<LdmatrixArg*>(args[l])->regs[m] = lo | u32(hi) << 16;
    }
  }
}

struct MmaArg { void* c; const u32* a; const u32* b; Mma kind; };

template <class Acc, u32 K, class Decode>
void multiply(void** args, Decode decode) {
  constexpr u32 per_reg = K / 8;  // elements in a 32-bit register: 2 or 4
  Acc a[16][K], b[K][8], c[16][8];
  for (u32 l = 0; l < 32; l++) {
    const auto& x = *static_cast<MmaArg*>(args[l]);
    const u32 g = l >> 2, t = l & 3;
    for (u32 r = 0; r < 4; r++)
      for (u32 e = 0; e < per_reg; e++)
        a[g + (r & 1) * 8][t * per_reg + (r >> 1) * K / 2 + e] = decode(x.a[r], e);
    for (u32 r = 0; r < 2; r++)
      for (u32 e = 0; e < per_reg; e++) b[t * per_reg + r * K / 2 + e][g] = decode(x.b[r], e);
    for (u32 r = 0; r < 4; r++) c[g + (r >> 1) * 8][t * 2 + (r & 1)] = static_cast<Acc*>(x.c)[r];
  }
  // The eight columns of eight rows at a time, so that no addition waits for the one before it.
  typedef Acc Lanes __attribute__((vector_size(32)));
  constexpr u32 kRows = 8;
  for (u32 i = 0; i < 16; i += kRows) {
    Lanes sums[kRows], row;
    std::memcpy(sums, c[i], sizeof sums);
    for (u32 k = 0; k < K; k++) {
      std::memcpy(&row, b[k], sizeof row);
#pragma GCC unroll 8
      for (u32 r = 0; r < kRows; r++) sums[r] += a[i + r][k] * row;
    }
    std::memcpy(c[i], sums, sizeof sums);
  }
  for (u32 l = 0; l < 32; l++) {
    const u32 g = l >> 2, t = l & 3;
    for (u32 r = 0; r < 4; r++) static_cast<Acc*>(static_cast<MmaArg*>(args[l])->c)[r] = c[g + (r >> 1) * 8][t * 2 + (r & 1)];
  }
}

void exec_mma(void** args, u32) {
  switch (static_cast<MmaArg*>(args[0])->kind) {
    case Mma::bf16:
      return multiply<float, 16>(args, [](u32 reg, u32 e) { return bf16_to_f32(u16(reg >> 16 * e)); });
    case Mma::f16:
      return multiply<float, 16>(args, [](u32 reg, u32 e) { return f16_to_f32(u16(reg >> 16 * e)); });
    case Mma::e4m3:
      return multiply<float, 32>(args, [](u32 reg, u32 e) { return e4m3_to_f32(u8(reg >> 8 * e)); });
    case Mma::s8:
      return multiply<i32, 32>(args, [](u32 reg, u32 e) { return i32(static_cast<signed char>(reg >> 8 * e)); });
  }
}

}  // namespace

float decode_element(Mma kind, const u8* p) {
  u16 half;
  std::memcpy(&half, p, kind == Mma::e4m3 ? 1 : 2);
  return kind == Mma::bf16 ? bf16_to_f32(half) : kind == Mma::f16 ? f16_to_f32(half) : e4m3_to_f32(*p);
}

void ldmatrix(u32* regs, u32 num, bool trans, u32 addr, Site at) {
  LdmatrixArg arg{regs, addr, num, trans, where_of(at)};
  warp_op(~0u, trans ? "ldmatrix.trans" : "ldmatrix", true, &arg, exec_ldmatrix, at);
}

void mma(Mma kind, void* c, const u32* a, const u32* b, Site at) {
  static const char* names[] = {"mma.f16", "mma.bf16", "mma.e4m3", "mma.s8"};
  MmaArg arg{c, a, b, kind};
  warp_op(~0u, names[u32(kind)], true, &arg, exec_mma, at);
}

}  // namespace emu
