"""Kernels that break the emulator's own footing: full stacks, threads that poll, warpgroups that do not agree."""

from __future__ import annotations

import numpy as np
import pytest
from test_semantics import HEAD, kernel

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import HostCompiler, build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError, Emulator

RECURSION = """
struct Deep {
  static __attribute__((noinline)) float sum(int n, const volatile float* p) {
    volatile float mine[64];
    for (int i = 0; i < 64; i++) mine[i] = p[i % 8] + n;
    return n ? sum(n - 1, mine) + mine[n % 64] : mine[3];
  }
};
LLMC_KERNEL(1024, 1) k(float* out, int thread, int depth) {
  volatile float first[8] = {};
  out[threadIdx.x] = 1;
  if (int(threadIdx.x) == thread) out[threadIdx.x] = Deep::sum(depth, first);
}
LLMC_EXPORT(k)
LLMC_KERNEL(128, 1) large(float* out, int n) {
  volatile float mine[40000];
  for (int i = 0; i < n; i++) mine[i] = i;
  out[threadIdx.x] = mine[threadIdx.x];
}
LLMC_EXPORT(large)
"""


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("compiler", [HostCompiler.gxx(), HostCompiler.zig()], ids=lambda c: c.name)
def test_a_full_stack_is_reported_and_nothing_else_is_harmed(
    emulator: Emulator, compiler: HostCompiler, checked: bool
) -> None:
    """By recursion, in the first thread as in the last, and by one array that reaches over several other stacks."""
    path = build_twin(HEAD + RECURSION, [TEMPLATES], checked=checked, name="deep.cu", compiler=compiler)
    deep, large = emulator.kernel(path, "k"), emulator.kernel(path, "large")
    out = emulator.empty((1024,), np.float32)
    for thread in (0, 5, 1023):
        with pytest.raises(CudaError, match=rf"thread \({thread},0,0\) at \S+:\d+: thread overflowed its .* stack"):
            deep((1,), 1024, 0, out, thread, 1 << 30)
        emulator.reset()
        deep((1,), 1024, 0, out, thread, 100)
        assert (np.delete(out.numpy(), thread) == 1).all()
    with pytest.raises(CudaError, match="overflowed"):
        large((1,), 128, 0, out, 40000)


def test_threads_that_poll_let_the_one_they_wait_for_run(emulator: Emulator) -> None:
    source = """LLMC_KERNEL(64, 1) k(float* out) {
  LLMC_SMEM(raw);
  u32* flag = reinterpret_cast<u32*>(raw);
  const int t = threadIdx.x;
  if (t == 0) store_release(flag, 0u);
  __syncthreads();
  const int waiting = out[0] == 0 ? 0 : 1;  // the first or the last warp
  if (t / 32 == waiting) {
    u32 seen = 0;
    while (!seen) seen = __shfl_sync(0xffffffffu, t % 32 == 0 ? load_acquire(flag) : 0, 0);
  } else if (t % 32 == 8) {
    store_release(flag, 1u);
  }
  out[1 + t] = 1;
}
LLMC_EXPORT(k)
"""
    for schedule in THREE_SCHEDULES:
        for waiting in (0.0, 1.0):
            emulator.set_schedule(schedule)
            out = emulator.array(np.full(65, waiting, np.float32))
            kernel(emulator, source)((1,), 64, 4, out)
            assert (out.numpy()[1:] == 1).all()


def test_an_mbarrier_may_be_made_while_others_are_waited_for(emulator: Emulator) -> None:
    source = """LLMC_KERNEL(128, 1) k(float* out) {
  LLMC_SMEM(raw);
  const u32 bar = smem_addr(raw);
  if (threadIdx.x == 0) mbar_init(bar, 1);
  __syncthreads();
  if (threadIdx.x < 64) {
    mbar_wait(bar, 0);
    out[threadIdx.x] = out[64];
  } else if (threadIdx.x == 64) {
    out[64] = 5;
    for (int i = 1; i < 64; i++) mbar_init(bar + 8 * i, 1);
    mbar_arrive(bar);
  }
}
LLMC_EXPORT(k)
"""
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        out = emulator.array(np.zeros(65, np.float32))
        kernel(emulator, source)((1,), 128, 512, out)
        assert (out.numpy() == 5).all()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("apart", "message"),
    [
        ("wgmma_ss<bf16>(part, a, b, true); wgmma_ss<bf16>(whole, a, a, true);", "overlaps, but is not"),
        ("wgmma_ss<bf16>(whole, a, a, true); wgmma_ss<bf16>(end, a, b, true);", "overlaps, but is not"),
        ("if (t) wgmma_ss<bf16>(part, a, a, true); else wgmma_ss<bf16>(whole, a, a, true);", "divergent warpgroup"),
        ("if (t) wgmma_ss<bf16>(part, a, a, true); else wgmma_ss<f16>(part, a, a, true);", "other descriptors"),
        ("if (t) wgmma_ss<bf16>(part, a, a, true); else wgmma_rs<bf16>(part, regs, a, true);", "other descriptors"),
        ("wgmma_commit(); if (t) wgmma_wait<0>(); else wgmma_wait<1>();", "divergent warpgroup"),
        ("if (t) setmaxnreg_dec<40>(); else setmaxnreg_dec<48>();", "divergent warpgroup"),
    ],
)
def test_a_warpgroup_that_does_not_agree_is_reported(
    emulator: Emulator, apart: str, message: str, checked: bool
) -> None:
    """On one line of the source, so that the line does not tell; and accumulators that share registers."""
    source = f"""LLMC_KERNEL(128, 1) k(float* out) {{
  LLMC_SMEM(raw);
  const int t = threadIdx.x;
  for (int i = t; i < 2048; i += 128) reinterpret_cast<u32*>(raw)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  const u64 a = wgmma_desc_sw128(smem_addr(raw)), b = a;
  float whole[8] = {{}};
  auto& part = reinterpret_cast<float(&)[4]>(whole);
  auto& end = reinterpret_cast<float(&)[4]>(whole[4]);
  u32 regs[4] = {{}};
  wgmma_fence();
  {apart}
  wgmma_commit();
  wgmma_wait<0>();
  out[t] = part[0] + end[0] + float(regs[0]) + float(b);
}}
LLMC_EXPORT(k)
"""
    out = emulator.empty((128,), np.float32)
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        with pytest.raises(CudaError, match=message):
            kernel(emulator, source, checked=checked)((1,), 128, 8192, out)
        emulator.reset()
