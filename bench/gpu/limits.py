"""What the card at hand reaches: the rooflines that kernels and models are held against."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.gpu.card import CardLab, elapsed_seconds, events, record

COPY = """#include "device.cuh"
LLMC_KERNEL(512, 2) kernel(const unsigned char* from, unsigned char* to, int vectors) {
  const int stride = gridDim.x * 512 * 4;
  for (int i = blockIdx.x * 2048 + threadIdx.x; i < vectors; i += stride) {
    Vec16 v[4];
    LLMC_UNROLL
    for (int j = 0; j < 4; j++) if (i + j * 512 < vectors) v[j] = load16_stream(from + size_t(i + j * 512) * 16);
    LLMC_UNROLL
    for (int j = 0; j < 4; j++) if (i + j * 512 < vectors) store16(to + size_t(i + j * 512) * 16, v[j]);
  }
}
LLMC_EXPORT(kernel)
"""
# Every word enters a thread's result, so that no load can be left out.
READ = """#include "device.cuh"
LLMC_KERNEL(512, 2) kernel(const unsigned char* from, u32* out, int vectors) {
  const int stride = gridDim.x * 512 * 4;
  u32 sum = 0;
  for (int i = blockIdx.x * 2048 + threadIdx.x; i < vectors; i += stride) {
    Vec16 v[4];
    LLMC_UNROLL
    for (int j = 0; j < 4; j++) if (i + j * 512 < vectors) v[j] = load16_stream(from + size_t(i + j * 512) * 16);
    LLMC_UNROLL
    for (int j = 0; j < 4; j++) if (i + j * 512 < vectors) sum ^= v[j].x[0] ^ v[j].x[1] ^ v[j].x[2] ^ v[j].x[3];
  }
  out[blockIdx.x * 512 + threadIdx.x] = sum;
}
LLMC_EXPORT(kernel)
"""
# Eight independent sums a warp, operands in registers: the rate at which mma.sync can be issued.
MMA = """#include "device.cuh"
LLMC_KERNEL(256, 1) kernel(float* out, int rounds) {
  float c[8][4] = {};
  const u32 one = 0x3f803f80u, a[4] = {one, one, one, one};
  for (int r = 0; r < rounds; r++) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) mma_bf16(c[i], a, one, one);
  }
  float sum = 0.0f;
  LLMC_UNROLL
  for (int i = 0; i < 8; i++) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
LLMC_EXPORT(kernel)
"""
# Two warpgroups a block, 64 x 256 sums each, both operands in shared memory: the rate of wgmma.
WGMMA = """#include "device.cuh"
LLMC_KERNEL(256, 1) kernel(float* out, int rounds) {
  LLMC_SMEM(smem);
  u32* words = reinterpret_cast<u32*>(smem);
  for (int i = threadIdx.x; i < 40960 / 4; i += 256) words[i] = 0x3f803f80u;
  fence_proxy_async();
  __syncthreads();
  float d[128] = {};
  const u64 a = wgmma_desc_sw128(smem_addr(smem)), b = wgmma_desc_sw128(smem_addr(smem) + 8192);
  for (int r = 0; r < rounds; r++) {
    wgmma_fence();
    LLMC_UNROLL
    for (int i = 0; i < 16; i++) wgmma_ss<bf16>(d, a + i % 4 * 2, b + i % 4 * 2, true);
    wgmma_commit();
    wgmma_wait<0>();
  }
  float sum = 0.0f;
  LLMC_UNROLL
  for (int i = 0; i < 128; i++) sum += d[i];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
LLMC_EXPORT(kernel)
"""


class WrongSum(AssertionError):
    """The rate of something that computes the wrong thing says nothing."""


def _best(lab: CardLab, repeats: int, launch: Callable[[], None]) -> float:
    """Least seconds of a launch that does not wait, after one to warm up."""
    card, pair, least = lab.emulator, events(lab.emulator), float("inf")
    for number in range(repeats + 1):
        record(card, pair[0])
        launch()
        record(card, pair[1])
        seconds = elapsed_seconds(card, pair)
        least = min(least, seconds) if number else least
    return max(least, 1e-9)


def copy_rate(lab: CardLab, nbytes: int, repeats: int) -> float:
    """Bytes per second, read and written together, of a copy of `nbytes`, which are more than any cache holds."""
    words = np.arange(nbytes // 4, dtype=np.uint32)
    source, target = lab.array(words), lab.empty(words.shape, np.uint32)
    kernel, grid = lab.kernel_of(COPY), (2 * lab.emulator.sms,)
    seconds = _best(lab, repeats, lambda: kernel(grid, 512, 0, source, target, nbytes // 16, wait=False))
    if not np.array_equal(target.numpy(), words):
        raise WrongSum("the copy is not a copy")
    lab.release()
    return 2 * nbytes / seconds


def read_rate(lab: CardLab, nbytes: int, repeats: int) -> float:
    """Bytes per second of reading alone, which is what decoding does."""
    words = np.random.default_rng(1).integers(0, 1 << 32, nbytes // 4, np.uint32)
    grid = (2 * lab.emulator.sms,)
    source, out = lab.array(words), lab.empty((grid[0] * 512,), np.uint32)
    kernel = lab.kernel_of(READ)
    seconds = _best(lab, repeats, lambda: kernel(grid, 512, 0, source, out, nbytes // 16, wait=False))
    if np.bitwise_xor.reduce(out.numpy()) != np.bitwise_xor.reduce(words):
        raise WrongSum("what was read is not what is there")
    lab.release()
    return nbytes / seconds


def upload_rate(lab: CardLab, nbytes: int, repeats: int) -> float:
    """Bytes per second from pinned memory to the card: what no load of weights is faster than."""
    card, host = lab.emulator, ctypes.c_void_p()
    card.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(nbytes), ctypes.c_uint(0))
    target = lab.empty((nbytes,), np.uint8)
    assert host.value is not None
    ctypes.memset(host.value, 1, nbytes)  # touched: pages that nobody wrote may be one and the same
    arguments = (ctypes.c_uint64(target.pointer), host, ctypes.c_size_t(nbytes), ctypes.c_void_p(0))
    seconds = _best(lab, repeats, lambda: card.call("cuMemcpyHtoDAsync_v2", *arguments))
    lab.release()
    card.call("cuMemFreeHost", host)
    return nbytes / seconds


def matrix_rate(lab: CardLab, rounds: int, repeats: int) -> tuple[str, float]:
    """(the instruction, operations per second) of the fastest way to multiply bf16, on data that never moves."""
    sms = lab.emulator.sms
    out = lab.empty((sms * 256,), np.float32)
    # per block and round: flops; value of a thread's sum: elements of its fragment times k of a round
    ways = [("mma.sync m16n8k16", MMA, 0, 8 * 8 * 2 * 16 * 8 * 16, 32 * 16)]
    if lab.emulator.target.has("wgmma"):
        ways.append(("wgmma m64n256k16", WGMMA, 40960, 2 * 16 * 2 * 64 * 256 * 16, 128 * 256))
    found = []
    for name, source, smem, flops, value in ways:
        kernel = lab.kernel_of(source)
        seconds = _best(lab, repeats, partial(kernel, (sms,), 256, smem, out, rounds, wait=False))
        if not (out.numpy() == rounds * value).all():
            raise WrongSum(f"{name}: sums are {out.numpy()[0]}, expected {rounds * value}")
        found.append((name, rounds * flops * sms / seconds))
    lab.release()
    return max(found, key=lambda f: f[1])
