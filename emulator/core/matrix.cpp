// matrix.cpp - ldmatrix and mma.sync (PTX ISA, warp level matrix instructions: layouts of m8n8, m16n8k16, m16n8k32).
#include "primitives.h"
#include "products.h"

namespace emu {

namespace {

[[noreturn]] void misaligned_row(u32 addr, Site at) {
  fail(Fault::misaligned, where_of(at), text("ldmatrix: row address 0x%x is not 16-byte aligned", addr));
}

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
      if (lane.addr % 16) misaligned_row(lane.addr, lane.at);
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
    const u8* columns[8];
    for (u32 j = 0; j < 8; j++) columns[j] = reinterpret_cast<u8*>(&b_bits[j][half * 4]);
    decode_columns(kind, columns, w + half * K / 2 * 8, 8);
  }
  add_product(K, a, w, 8, c[0], 8);
  add_product(K, a + 8 * K, w, 8, c[8], 8);
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

struct MultiplyArg { const SharedProduct* product; Site at; };

// The same sums as STEPS times ldmatrix and mma, in the same order along K.
void exec_multiply(void** args, u32) {
  Block& b = *me().block;
  const auto arg = [&](u32 lane) -> const MultiplyArg& { return *static_cast<MultiplyArg*>(args[lane]); };
  const SharedProduct& p = *arg(0).product;
  // Row i of matrix m of a load, as lane 8*m + i gives it.
  const auto row = [&](const u32* SharedProduct::*loads, u32 load, u32 m, u32 i) {
    const MultiplyArg& lane = arg(m * 8 + i);
    const u32 addr = (lane.product->*loads)[load];
    if (addr % 16) misaligned_row(addr, lane.at);
    return smem_at(b, addr, 16, lane.at);
  };
  const u32 k = p.steps * 16;
  thread_local std::vector<float> columns, rows;
  columns.resize(p.columns * k * 8);
  rows.resize(16 * k);
  for (u32 step = 0; step < p.steps; step++)
    for (u32 j = 0; j < p.columns; j++)
      for (u32 half = 0; half < 2; half++) {
        const u32 fragment = step * p.columns + j;
        const u8* eight[8];
        for (u32 i = 0; i < 8; i++) eight[i] = row(&SharedProduct::b, fragment / 2, fragment % 2 * 2 + half, i);
        decode_columns(p.kind, eight, &columns[(j * k + step * 16 + half * 8) * 8], 8);
      }
  for (u32 i = 0; i < p.rows; i++) {
    for (u32 step = 0; step < p.steps; step++)
      for (u32 m = 0; m < 4; m++)
        for (u32 r = 0; r < 8; r++)
          decode(p.kind, row(&SharedProduct::a, step * p.rows + i, m, r), &rows[(m % 2 * 8 + r) * k + step * 16 + m / 2 * 8], 1);
    for (u32 j = 0; j < p.columns; j++) {
      float c[16][8];
      const auto each_quad = [&](auto&& move) {
        for (u32 l = 0; l < 32; l++)
          for (u32 h = 0; h < 2; h++)
            move(&c[(l >> 2) + h * 8][(l & 3) * 2], arg(l).product->c + (i * p.columns + j) * 4 + h * 2);
      };
      each_quad([](float* tile, const float* mine) { std::memcpy(tile, mine, 8); });
      for (u32 h = 0; h < 2; h++) add_product(k, &rows[h * 8 * k], &columns[j * k * 8], 8, c[h * 8], 8);
      each_quad([](const float* tile, float* mine) { std::memcpy(mine, tile, 8); });
    }
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

void multiply_shared(const SharedProduct& product, Site at) {
  MultiplyArg arg{&product, at};
  warp_op(~0u, "ldmatrix and mma", true, &arg, exec_multiply, at);
}

}  // namespace emu
