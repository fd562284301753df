// wgmma.cpp - asynchronous warpgroup matrix multiply (PTX ISA: wgmma): matrix descriptors, register ownership,
// groups; setmaxnreg. Operands are read when issued, when waited for, or at random; accumulators hold
// NaN from issue to wait.
#include <algorithm>
#include <cstring>

#include "../include/llmc_emu/formats.h"
#include "primitives.h"

namespace emu {

namespace {

u32 depth(Mma kind) { return kind == Mma::e4m3 || kind == Mma::s8 ? 32 : 16; }
u32 element_bytes(Mma kind) { return 32 / depth(kind); }

// Byte address of element (row, k) of a K-major operand (matrix descriptor): rows in groups of 8 at the stride byte
// offset; within a group rows of `span` bytes, swizzled, or 8x16-byte core matrices when there is no swizzle.
u32 operand_address(u64 desc, u32 row, u32 k_bytes) {
  const u32 start = u32(desc & 0x3fff) << 4, leading = u32(desc >> 16 & 0x3fff) << 4, stride = u32(desc >> 32 & 0x3fff) << 4;
  const u32 mode = u32(desc >> 62);
  if (mode == 0) return start + row / 8 * stride + k_bytes / 16 * leading + row % 8 * 16 + k_bytes % 16;
  const u32 span = mode == 1 ? 128 : mode == 2 ? 64 : 32;
  return swizzled(start + row / 8 * stride + row % 8 * span + k_bytes, span);
}

template <class F>
void each_operand_chunk(u64 desc, u32 rows, u32 k_bytes, F&& f) {  // 16-byte chunks are contiguous in every mode
  for (u32 r = 0; r < rows; r++)
    for (u32 k = 0; k < k_bytes; k += 16) f(r, k, operand_address(desc, r, k));
}

// Row and column, in the 64 x n tile, of value `v` of thread `t` (wgmma register fragments).
u32 tile_index(u32 t, u32 v, u32 n) {
  const u32 row = t / 32 * 16 + t % 32 / 4 + (v >> 1 & 1) * 8, col = v / 4 * 8 + t % 4 * 2 + (v & 1);
  return row * n + col;
}

template <class Acc, class Load>
void multiply(Block& b, const WgmmaOp& op, Load load) {
  const u32 k = depth(op.kind), bytes = element_bytes(op.kind);
  std::vector<Acc> a(64 * k), w(size_t(k) * op.n);
  if (op.a_in_regs) {
    const u32 per_reg = 4 / bytes;
    for (u32 t = 0; t < 128; t++)
      for (u32 r = 0; r < 4; r++)
        for (u32 e = 0; e < per_reg; e++) {
          const u32 row = t / 32 * 16 + t % 32 / 4 + (r & 1) * 8, col = t % 4 * per_reg + (r >> 1) * k / 2 + e;
          a[row * k + col] = load(reinterpret_cast<const u8*>(&op.a_regs[t * 4 + r]) + e * bytes);
        }
  } else {
    each_operand_chunk(op.desc_a, 64, 32, [&](u32 row, u32 at, u32 address) {
      for (u32 e = 0; e < 16 / bytes; e++) a[row * k + at / bytes + e] = load(b.smem + address + e * bytes);
    });
  }
  each_operand_chunk(op.desc_b, op.n, 32, [&](u32 row, u32 at, u32 address) {
    for (u32 e = 0; e < 16 / bytes; e++) w[(at / bytes + e) * op.n + row] = load(b.smem + address + e * bytes);
  });
  auto* c = reinterpret_cast<Acc*>(op.acc->tile.data());
  if (!op.accumulate) std::fill(c, c + size_t(64) * op.n, Acc(0));
  for (u32 i = 0; i < 64; i++)
    for (u32 x = 0; x < k; x++)
      for (u32 j = 0; j < op.n; j++) c[i * op.n + j] += a[i * k + x] * w[x * op.n + j];
}

// bf16 and f16, which decode steps spend their time in: eight rows by eight columns at a time, so that no addition waits
// for the one before it, each sum along k in order as above.
typedef float Lanes __attribute__((vector_size(32)));
typedef u32 Words __attribute__((vector_size(32)));
typedef u16 Halves __attribute__((vector_size(16)));
constexpr u32 kDepth = 16, kMaxN = 256, kRows = 8;

void widen(Mma kind, const u8* from, float* to, u32 stride) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  float wide[8];
  if (kind == Mma::bf16) {
    const Words bits = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(wide, &bits, sizeof wide);
  } else {
    for (u32 e = 0; e < 8; e++) wide[e] = f16_to_f32(halves[e]);
  }
  if (stride == 1) std::memcpy(to, wide, sizeof wide);
  else for (u32 e = 0; e < 8; e++) to[e * stride] = wide[e];
}

void multiply_halves(Block& b, const WgmmaOp& op) {
  float a[64 * kDepth];
  alignas(32) float w[kDepth * kMaxN];
  auto operand = [&](u64 desc, u32 rows, float* to, u32 row_stride, u32 k_stride) {
    each_operand_chunk(desc, rows, 32, [&](u32 row, u32 at, u32 address) {
      widen(op.kind, b.smem + address, to + row * row_stride + at / 2 * k_stride, k_stride);
    });
  };
  operand(op.desc_a, 64, a, kDepth, 1);
  operand(op.desc_b, op.n, w, 1, op.n);
  auto* c = reinterpret_cast<float*>(op.acc->tile.data());
  for (u32 i = 0; i < 64; i += kRows)
    for (u32 j = 0; j < op.n; j += 8) {
      Lanes sums[kRows] = {};
      for (u32 r = 0; op.accumulate && r < kRows; r++) std::memcpy(&sums[r], c + (i + r) * op.n + j, sizeof sums[r]);
      for (u32 x = 0; x < kDepth; x++) {
        Lanes column;
        std::memcpy(&column, w + x * op.n + j, sizeof column);
#pragma GCC unroll 8
        for (u32 r = 0; r < kRows; r++) sums[r] += a[(i + r) * kDepth + x] * column;
      }
      for (u32 r = 0; r < kRows; r++) std::memcpy(c + (i + r) * op.n + j, &sums[r], sizeof sums[r]);
    }
}

void execute(Block& b, WgmmaOp& op) {
  if (op.executed) return;
  op.executed = true;
  if (op.kind == Mma::s8) multiply<i32>(b, op, [](const u8* p) { return i32(static_cast<signed char>(*p)); });
  else if (!op.a_in_regs && op.kind != Mma::e4m3) multiply_halves(b, op);
  else multiply<float>(b, op, [&](const u8* p) { return decode_element(op.kind, p); });
}

template <class F>
void each_smem_range(Block& b, const WgmmaOp& op, F&& f) {
  auto chunk = [&](u32, u32, u32 address) { f(b.smem + address, size_t{16}); };
  if (!op.a_in_regs) each_operand_chunk(op.desc_a, 64, 32, chunk);
  each_operand_chunk(op.desc_b, op.n, 32, chunk);
}

void check_layout(Block& b, u64 desc, Site at) {
  const u32 start = u32(desc & 0x3fff) << 4, mode = u32(desc >> 62);
  const u32 span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
  auto it = b.layouts.upper_bound(start);
  if (it == b.layouts.begin()) return;
  const auto& [offset, layout] = *--it;
  if (start < offset + layout.bytes && layout.span != span)
    misuse(at, text("wgmma: the descriptor at 0x%x says %u-byte swizzle, the TMA load at %s wrote %u-byte swizzle", start,
                    span, describe(where_of(layout.at)).c_str(), layout.span));
}

void exec_issue(Warpgroup& g, Block& b, Collective& c) {
  WgmmaOp& op = c.op;
  const Where where = where_of(op.at);
  const u32 base = u32(&g - b.warpgroups) * 128;
  if (!g.fenced)
    misuse(op.at, "wgmma without wgmma_fence: the first wgmma, and the first after a wgmma_wait, needs one before it "
                  "(registers of the accumulator may have been touched)");
  each_operand_chunk(op.desc_b, op.n, 32, [&](u32, u32, u32 address) { smem_at(b, address, 16, where); });
  if (!op.a_in_regs) each_operand_chunk(op.desc_a, 64, 32, [&](u32, u32, u32 address) { smem_at(b, address, 16, where); });

  check_layout(b, op.desc_b, op.at);
  if (!op.a_in_regs) check_layout(b, op.desc_a, op.at);

  for (auto& acc : g.accumulators)
    if (acc->thread_regs[0] == c.regs[0] && acc->n == op.n) op.acc = acc.get();
  if (!op.acc) {
    g.accumulators.push_back(std::make_unique<Accumulator>());
    op.acc = g.accumulators.back().get();
    op.acc->n = op.n;
    op.acc->tile = std::move(c.tile);
    op.acc->tile.resize(size_t(64) * op.n, ~0u);
    std::copy(c.regs, c.regs + 128, op.acc->thread_regs);
  }
  op.acc->users++;
  if (b.checked()) {
    op.token = b.next_token++;
    each_smem_range(b, op, [&](const u8* p, size_t n) { race_pend(b, p, n, {kAsync, where, base}, op.token); });
  }
  // Operations on one accumulator execute in order, so early means: everything issued so far.
  const bool early = b.coin();
  g.ops.push_back(std::move(op));
  if (early) for (WgmmaOp& x : g.ops) execute(b, x);
}

void give_back(Warpgroup& g, Block& b, Accumulator* acc) {
  const u32 base = u32(&g - b.warpgroups) * 128;
  for (u32 t = 0; t < 128; t++) {
    auto* regs = static_cast<u32*>(acc->thread_regs[t]);
    for (u32 v = 0; v < acc->n / 2; v++) regs[v] = acc->tile[tile_index(t, v, acc->n)];
    auto& flights = b.fibers[base + t]->in_flight;
    const auto* bytes = reinterpret_cast<const u8*>(regs);
    flights.erase(std::remove_if(flights.begin(), flights.end(), [&](const InFlight& f) { return f.begin == bytes; }),
                  flights.end());
  }
  g.accumulators.erase(std::find_if(g.accumulators.begin(), g.accumulators.end(),
                                    [&](const auto& p) { return p.get() == acc; }));
}

void exec_wait(Warpgroup& g, Block& b, Collective& c) {
  const u32 pending = c.value, base = u32(&g - b.warpgroups) * 128;
  if (g.groups.size() <= pending) return;
  const size_t groups = g.groups.size() - pending, n = g.groups[groups - 1];
  u32 stamp = 0;
  if (b.checked()) {
    auto& waits = b.race.wgmma_waits[base / 128];
    stamp = u32(waits.size());
    std::array<u32, 4> lead;
    for (u32 w = 0; w < 4; w++) {
      const u32 leader = base + w * 32;
      lead[w] = b.race.row(leader)[leader];
      for (u32 l = 0; l < 32; l++) b.race.row(leader + l)[leader] = lead[w];  // the wait synchronises each warp
      clock_tick(b, leader);
    }
    waits.push_back(lead);
  }
  std::vector<Accumulator*> finished;
  for (size_t i = 0; i < n; i++) {
    WgmmaOp& op = g.ops[i];
    execute(b, op);
    if (b.checked())
      each_smem_range(b, op, [&](const u8* p, size_t bytes) {
        race_land(b, p, bytes, op.token, kWarpgroup + base / 128, stamp);
      });
    if (--op.acc->users == 0) finished.push_back(op.acc);
  }
  for (Accumulator* acc : finished) give_back(g, b, acc);
  g.ops.erase(g.ops.begin(), g.ops.begin() + long(n));
  g.groups.erase(g.groups.begin(), g.groups.begin() + long(groups));
  for (size_t& boundary : g.groups) boundary -= n;
  g.fenced = false;
}

}  // namespace

void wgmma(Mma kind, u32 n, void* acc, const u32* a, u64 desc_a, u64 desc_b, bool accumulate, Site at) {
  Fiber& f = me();
  const u32 t = f.id % 128;
  Collective& c = warpgroup_join("wgmma", at);
  WgmmaOp& op = c.op;
  if (!c.arrived) {
    op.kind = kind, op.n = n, op.desc_a = desc_a, op.desc_b = desc_b;
    op.a_in_regs = a != nullptr, op.accumulate = accumulate, op.at = at;
    if (a) op.a_regs.resize(128 * 4);
  } else if (op.desc_a != desc_a || op.desc_b != desc_b || op.accumulate != accumulate) {
    misuse(at, text("wgmma: thread %u gives other descriptors than another thread of the same warpgroup", f.id));
  }
  if (a) std::copy(a, a + 4, op.a_regs.begin() + t * 4);
  // Take the registers over, unless an earlier operation holds them: their values into the tile, poison in their place.
  auto* regs = static_cast<u32*>(acc);
  const auto* bytes = reinterpret_cast<const u8*>(acc);
  c.regs[t] = acc;
  const bool held = std::any_of(f.in_flight.begin(), f.in_flight.end(), [&](const InFlight& x) { return x.begin == bytes; });
  if (!held) {
    c.tile.resize(size_t(64) * n);
    for (u32 v = 0; v < n / 2; v++) c.tile[tile_index(t, v, n)] = regs[v];
    std::memset(acc, 0xFF, n * 2);
    f.in_flight.push_back({bytes, bytes + n * 2});
  }
  warpgroup_arrive(c, exec_issue, false);
}

void wgmma_fence(Site at) {
  warpgroup_arrive(warpgroup_join("wgmma.fence", at), [](Warpgroup& g, Block&, Collective&) { g.fenced = true; }, false);
}

void wgmma_commit(Site at) {
  warpgroup_arrive(warpgroup_join("wgmma.commit_group", at),
                   [](Warpgroup& g, Block&, Collective&) { g.groups.push_back(g.ops.size()); }, false);
}

void wgmma_wait(u32 pending, Site at) {
  Collective& c = warpgroup_join("wgmma.wait_group", at);
  c.value = pending;
  warpgroup_arrive(c, exec_wait, true);
}

namespace {
void give_registers(Block& b) {
  for (Warpgroup& g : b.warpgroups) {
    if (g.reg_waiters.empty()) continue;
    for (u32 t : g.reg_waiters) wake(b, t);
    g.reg_waiters.clear();
  }
}
}  // namespace

void setmaxnreg(u32 regs, bool increase, Site at) {
  if (regs < 24 || regs > 256 || regs % 8) misuse(at, text("setmaxnreg %u is not a multiple of 8 in 24..256", regs));
  Collective& c = warpgroup_join(increase ? "setmaxnreg.inc" : "setmaxnreg.dec", at);
  c.value = regs;
  auto inc = [](Warpgroup& g, Block&, Collective& x) {
    if (x.value < g.regs) misuse(x.at, text("setmaxnreg.inc %u: the warpgroup holds %u registers per thread", x.value, g.regs));
  };
  auto dec = [](Warpgroup& g, Block& b, Collective& x) {
    if (x.value > g.regs) misuse(x.at, text("setmaxnreg.dec %u: the warpgroup holds %u registers per thread", x.value, g.regs));
    b.free_regs += g.regs - x.value;
    g.regs = x.value;
    give_registers(b);
  };
  warpgroup_arrive(c, increase ? CollectiveExec(inc) : CollectiveExec(dec), true);
  if (!increase) return;
  Fiber& f = me();
  Block& b = *f.block;
  Warpgroup& g = b.warpgroups[f.id / 128];
  while (g.regs < regs && b.free_regs < regs - g.regs) {  // waits until other warpgroups give registers back
    g.reg_waiters.push_back(f.id);
    block_here("setmaxnreg.inc", at);
  }
  if (g.regs < regs) b.free_regs -= regs - g.regs, g.regs = regs;
}

}  // namespace emu
