"""Meanings of primitives that the kernels do not exercise in full: conversions, TMA boxes, atomics, register
hand-over, and what an unchecked twin still catches."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import BuildError, HostCompiler, build_twin
from llmc.emulator.pairs import elf_bytes
from llmc.emulator.session import THREE_SCHEDULES, CudaError, Emulator, Kernel

HEAD = '#include "device.cuh"\n'
CONVERT = """
LLMC_KERNEL(256, 1) to_narrow(const float* x, bf16* b, f16* h, e4m3* e, int n) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * gridDim.x)
    b[i] = to_bf16(x[i]), h[i] = to_f16(x[i]), e[i] = to_e4m3(x[i]);
}
LLMC_EXPORT(to_narrow)
LLMC_KERNEL(256, 1) to_wide(const bf16* b, const f16* h, const e4m3* e, float* x, float* y, float* z) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  x[i] = to_f32(b[i]), y[i] = to_f32(h[i]);
  if (i < 256) z[i] = to_f32(e[i]);
}
LLMC_EXPORT(to_wide)
"""


def kernel(emulator: Emulator, source: str, name: str = "k", checked: bool = True) -> Kernel:
    return emulator.kernel(build_twin(HEAD + source, [TEMPLATES], checked=checked, name="semantics.cu"), name)


def test_narrowing_rounds_as_the_formats_do(emulator: Emulator) -> None:
    """Against ml_dtypes and numpy, on values around every rounding boundary; beyond 448 e4m3 saturates."""
    rng = np.random.default_rng(0)
    exponents = 2.0 ** rng.integers(-30, 20, 20000)
    x = (rng.standard_normal(20000) * exponents).astype(np.float32)
    every = np.arange(256, dtype=np.uint8).view(float8_e4m3fn).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    middles = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([x, finite, middles, [np.nan, np.inf, -np.inf, 0.0, -0.0, 448, 464, 1e9]]).astype(np.float32)
    b, h, e = (emulator.empty(x.shape, t) for t in (bfloat16, np.float16, np.uint8))
    kernel(emulator, CONVERT, "to_narrow", checked=False)((4,), 256, 0, emulator.array(x), b, h, e, len(x))
    with np.errstate(over="ignore"):
        assert np.array_equal(b.numpy(), x.astype(bfloat16), equal_nan=True)
        assert np.array_equal(h.numpy(), x.astype(np.float16), equal_nan=True)
    want = np.where(np.isnan(x), x, np.clip(x, -448, 448)).astype(float8_e4m3fn)
    got = e.numpy().view(float8_e4m3fn)
    assert np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)


def test_widening_is_exact_for_every_bit_pattern(emulator: Emulator) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    x, y, z = (emulator.empty((n,), np.float32) for n in (65536, 65536, 256))
    e = np.arange(256, dtype=np.uint8)
    kernel(emulator, CONVERT, "to_wide", checked=False)(
        (256,), 256, 0, emulator.array(bits), emulator.array(bits), emulator.array(e), x, y, z
    )
    for got, want in ((x, bits.view(bfloat16)), (y, bits.view(np.float16)), (z, e.view(float8_e4m3fn))):
        assert np.array_equal(got.numpy(), want.astype(np.float32), equal_nan=True)


TMA = """
LLMC_KERNEL(32, 1) k(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, int bytes, int x, int y, int z) {
  LLMC_SMEM(raw);
  const u32 smem = smem_addr(raw), bar = smem + 16384;
  if (threadIdx.x == 0) {
    mbar_init(bar, 1);
    mbar_fence_init();
    mbar_expect_tx(bar, bytes);
    LOAD;
    mbar_wait(bar, 0);
    STORE;
    tma_commit();
    tma_wait<0>();
  }
}
LLMC_EXPORT(k)
"""
_COORDS = {1: "x", 2: "x, y", 3: "x, y, z"}


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_tma_copies_a_box_and_clips_it(emulator: Emulator, rank: int, swizzle: int) -> None:
    """A box that sticks out of the tensor: loads give zero outside, stores drop it. Through one swizzle
    and back."""
    inner = swizzle // 2 or 64
    shape, box = (5, 6, 2 * inner)[3 - rank :], (2, 4, inner)[3 - rank :]
    rng = np.random.default_rng(rank)
    a = rng.integers(1, 60000, shape).astype(np.uint16)
    c = _COORDS[rank]
    source = TMA.replace("LOAD", f"tma_load_{rank}d(smem, &from, bar, {c})").replace(
        "STORE", f"tma_store_{rank}d(&to, smem, {c})"
    )
    k = kernel(emulator, source)
    for schedule in THREE_SCHEDULES:
        for at in ([0, 0, 0], [inner, 4, 4], [inner + 8, 5, 4], [-8, -1, -1]):
            emulator.set_schedule(schedule)
            src, dst = emulator.array(a), emulator.array(np.zeros(shape, np.uint16))
            k((1,), 32, 16448, emulator.tensor_map(src, box, swizzle), emulator.tensor_map(dst, box, swizzle),
              int(np.prod(box)) * 2, *at)  # fmt: skip
            want = np.zeros(shape, np.uint16)
            inside = tuple(
                slice(max(0, start), max(0, min(n, start + size)))
                for n, size, start in zip(shape, box, at[:rank][::-1], strict=True)
            )
            want[inside] = a[inside]
            assert np.array_equal(dst.numpy(), want)


def test_atomics_and_flags_between_blocks(emulator: Emulator) -> None:
    source = """LLMC_KERNEL(32, 1) k(u32* n, float* f, u32* flag, float* data) {
  atomic_add(n, 1u);
  atomic_max(n + 1, blockIdx.x * 32 + threadIdx.x);
  atomic_add(f, 0.5f);
  if (threadIdx.x == 0) {
    data[blockIdx.x] = blockIdx.x;
    store_release(flag + blockIdx.x, 1u);
    for (u32 other = 0; other < gridDim.x; other++)
      if (load_acquire(flag + other)) data[8 + blockIdx.x] += data[other];
  }
}
LLMC_EXPORT(k)
"""
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        n, f = emulator.array(np.zeros(2, np.uint32)), emulator.array(np.zeros(1, np.float32))
        flag, data = emulator.array(np.zeros(8, np.uint32)), emulator.array(np.zeros(16, np.float32))
        kernel(emulator, source)((8,), 32, 0, n, f, flag, data)
        assert n.numpy().tolist() == [256, 255] and f.numpy()[0] == 128
        assert data.numpy()[8:].max() == 28  # the block that came last saw all


def test_register_hand_over_waits_for_its_registers(emulator: Emulator) -> None:
    source = """LLMC_KERNEL(256, 1) k(float* out) {
  if (threadIdx.x >= 128) { setmaxnreg_inc<256>(); } else { GIVE; }
  out[threadIdx.x] = 1;
}
LLMC_EXPORT(k)
"""
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        kernel(emulator, source.replace("GIVE", "setmaxnreg_dec<40>()"))(
            (1,), 256, 0, emulator.array(np.zeros(256, np.float32))
        )
    with pytest.raises(CudaError, match=r"deadlock.*setmaxnreg\.inc"):
        kernel(emulator, source.replace("GIVE", ""))((1,), 256, 0, emulator.array(np.zeros(256, np.float32)))


@pytest.mark.parametrize("compiler", [HostCompiler.gxx(), HostCompiler.zig()], ids=lambda c: c.name)
def test_unchecked_twins_fault_on_wild_and_freed_pointers(emulator: Emulator, compiler: HostCompiler) -> None:
    """Plain accesses are not instrumented there; the guard pages behind every allocation are what remains."""
    source = HEAD + "LLMC_KERNEL(32, 1) k(float* p, int offset) {\n  p[threadIdx.x + offset] = 1;\n}\nLLMC_EXPORT(k)\n"
    k = emulator.kernel(build_twin(source, [TEMPLATES], checked=False, name="wild.cu", compiler=compiler), "k")
    emulator.set_checked(False)
    p = emulator.array(np.zeros(1024, np.float32))
    k((1,), 32, 0, p, 0)
    with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS.*wild\.cu:3: .*past the end of allocation"):
        k((1,), 32, 0, p, 1024)
    emulator.reset()
    p.free()
    with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS.*wild\.cu:3: .*use after free"):
        k((1,), 32, 0, p, 0)


def test_a_report_names_kernel_block_thread_and_line(emulator: Emulator) -> None:
    source = "LLMC_KERNEL(64, 1) k(float* p) {\n  if (blockIdx.y == 1 && threadIdx.x == 37)\n    p[64] = 0;\n}\nLLMC_EXPORT(k)\n"
    with pytest.raises(CudaError) as caught:
        kernel(emulator, source)((1, 2), 64, 0, emulator.array(np.zeros(64, np.float32)))
    assert re.search(r"k: block \(0,1,0\) thread \(37,0,0\) at semantics\.cu:4: ", str(caught.value))


def test_compiler_errors_name_the_source_line() -> None:
    with pytest.raises(BuildError, match=r"broken\.cu:2:"):
        build_twin(HEAD + "int x = nothing;\n", [TEMPLATES], checked=False, name="broken.cu")


def test_what_is_not_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ELF image"):
        elf_bytes(b"PTX text")


WARPGROUP = """
LLMC_KERNEL(128, 1) k(float* out, int absent) {
  LLMC_SMEM(raw);
  const u32 s = smem_addr(raw);
  bf16* words = reinterpret_cast<bf16*>(raw);
  for (int i = threadIdx.x; i < 72 * 64; i += 128) words[i] = to_bf16(1.0f);
  fence_proxy_async();
  __syncthreads();
  float d[4] = {2, 2, 2, 2};
  if (int(threadIdx.x) / 32 == absent) return;
  wgmma_fence();
  wgmma_ss<bf16>(d, wgmma_desc_sw128(s), wgmma_desc_sw128(s + 64 * 128), true);
  wgmma_commit();
  out[threadIdx.x] = d[0];
  WAIT
  out[threadIdx.x + 128] = d[0];
}
LLMC_EXPORT(k)
"""


@pytest.mark.parametrize("checked", [False, True])
def test_a_warpgroup_works_as_one(emulator: Emulator, checked: bool) -> None:
    """Its registers are not the thread's until the wait; one warp that stays away is reported, wait or no wait."""
    whole = kernel(emulator, WARPGROUP.replace("WAIT", "wgmma_wait<0>();"), checked=checked)
    out = emulator.empty((256,), np.float32)
    if not checked:
        whole((1,), 128, 72 * 128, out, 4)
        assert np.isnan(out.numpy()[:128]).all() and (out.numpy()[128:] == 18).all()
    for wait, message in (("wgmma_wait<0>();", "deadlock|divergent"), ("", "divergent|deadlock|in flight")):
        emulator.reset()
        apart = kernel(
            emulator, WARPGROUP.replace("out[threadIdx.x] = d[0];", "").replace("WAIT", wait), checked=checked
        )
        with pytest.raises(CudaError, match=message):
            apart((1,), 128, 72 * 128, out, 3)
