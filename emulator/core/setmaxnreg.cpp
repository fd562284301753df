// setmaxnreg.cpp - warpgroups give registers back and take them (PTX ISA: setmaxnreg).
#include "primitives.h"
#include "warpgroup.h"

namespace emu {

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
  Collective& c = warpgroup_join(increase ? "setmaxnreg.inc" : "setmaxnreg.dec", at, regs);
  auto inc = [](Warpgroup& g, Block&, Collective& x) {
    if (x.value < g.regs) misuse(x.at, text("setmaxnreg.inc %u: the warpgroup holds %u registers per thread", x.value, g.regs));
  };
  auto dec = [](Warpgroup& g, Block& b, Collective& x) {
    if (x.value > g.regs) misuse(x.at, text("setmaxnreg.dec %u: the warpgroup holds %u registers per thread", x.value, g.regs));
    b.free_regs += g.regs - x.value;
    g.regs = x.value;
    give_registers(b);
  };
  if (increase) warpgroup_arrive(c, Meet::warpgroup, inc);
  else warpgroup_arrive(c, Meet::warpgroup, dec);
  if (!increase) return;
  Fiber& f = me();
  Block& b = *f.block;
  Warpgroup& g = *f.group;
  while (g.regs < regs && b.free_regs < regs - g.regs) {  // waits until other warpgroups give registers back
    g.reg_waiters.push_back(f.id);
    block_here("setmaxnreg.inc", at);
  }
  if (g.regs < regs) b.free_regs -= regs - g.regs, g.regs = regs;
}

}  // namespace emu
