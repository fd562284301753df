"""Every primitive of device.cuh on inputs whose result numpy knows: the first thing to run on a new card.

A check returns what is wrong; integers small enough that every sum is exact, so that most results are compared bit for
bit. A test holds that no primitive is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

from bench.gpu.card import CardLab
from bench.gpu.checks import Check, equal, kernel, rng
from bench.gpu.matrix_primitives import MATRIX_CHECKS
from llmc.emulator.session import DeviceArray

Array = np.ndarray
CONVERT = kernel(
    256,
    "const float* x, bf16* b, f16* h, u32* pair, float* wide, float* wide16, u32* bits, double* back",
    """  const int i = blockIdx.x * 256 + threadIdx.x;
  b[i] = to_bf16(x[i]), h[i] = to_f16(x[i]), pair[i] = pack_bf16(x[i], x[i ^ 1]);
  wide[i] = to_f32(bf16{(unsigned short)i}), wide16[i] = to_f32(f16{(unsigned short)i});
  bits[i] = float_bits(x[i]) ^ float_bits(bits_float(float_bits(x[i])));
  back[i] = bits_double(double_bits(double(x[i])));""",
)


def _convert(lab: CardLab) -> None:
    n = 65536
    x = (rng().standard_normal(n) * 2.0 ** rng().integers(-30, 20, n)).astype(np.float32)
    x[:6] = [np.nan, np.inf, -np.inf, -0.0, 65519.996, 3.3895e38]
    kinds = (bfloat16, np.float16, np.uint32, np.float32, np.float32, np.uint32, np.float64)
    out = [lab.empty((n,), kind) for kind in kinds]
    lab.kernel_of(CONVERT)((n // 256,), 256, 0, lab.array(x), *out)
    b, h, pair, wide, wide16, bits, back = (o.numpy() for o in out)
    every = np.arange(n, dtype=np.uint16)
    with np.errstate(over="ignore"):
        equal("to_bf16", b, x.astype(bfloat16))
        equal("to_f16", h, x.astype(np.float16))
    narrow = b.view(np.uint16).astype(np.uint32)
    equal("pack_bf16", pair, narrow | narrow.reshape(-1, 2)[:, ::-1].reshape(-1) << 16)
    equal("to_f32 of bf16", wide, every.view(bfloat16))
    equal("to_f32 of f16", wide16, every.view(np.float16))
    equal("float_bits, bits_float", bits, np.zeros(n, np.uint32))
    equal("double_bits, bits_double", back, x.astype(np.float64))


CONVERT8 = kernel(
    256,
    "const float* x, e4m3* e, float* wide",
    "  const int i = threadIdx.x;\n  e[i] = to_e4m3(x[i]), wide[i] = to_f32(e4m3{(unsigned char)i});",
)


def _convert8(lab: CardLab) -> None:
    x = (rng().standard_normal(256) * 2.0 ** rng().integers(-8, 9, 256)).astype(np.float32)
    x[:4] = [np.nan, 1e9, -464, 0.0]
    e, wide = lab.empty((256,), np.uint8), lab.empty((256,), np.float32)
    lab.kernel_of(CONVERT8)((1,), 256, 0, lab.array(x), e, wide)
    want = np.where(np.isnan(x), x, np.clip(x, -448, 448)).astype(float8_e4m3fn)
    equal("to_e4m3", e.numpy().view(float8_e4m3fn), want)
    equal("to_f32 of e4m3", wide.numpy(), np.arange(256, dtype=np.uint8).view(float8_e4m3fn))


APPROXIMATE = kernel(
    256,
    "const float* x, float* y",
    """  const int i = threadIdx.x;
  y[i] = exp2_approx(x[i]), y[256 + i] = rsqrt_approx(x[i] * x[i]), y[512 + i] = rcp_approx(x[i]);""",
)


def _approximate(lab: CardLab) -> None:
    x = rng().uniform(0.01, 100, 256).astype(np.float32)
    y = lab.empty((3, 256), np.float32)
    lab.kernel_of(APPROXIMATE)((1,), 256, 0, lab.array(x), y)
    wide = x.astype(np.float64)
    square = (x * x).astype(np.float64)
    for name, got, want in zip(("exp2", "rsqrt", "rcp"), y.numpy(), (2**wide, square**-0.5, 1 / wide), strict=True):
        worst = np.abs(got / want - 1).max()
        assert worst < 2.0**-21, f"{name}_approx: relative error {worst:.2g}, expected below 2^-21"


MEMORY = kernel(
    64,
    "const unsigned char* x, unsigned char* y",
    """  const int t = threadIdx.x, at = t * 16;
  LLMC_SMEM(smem);
  Vec16 v = load16(x + at), w = load16_stream(x + 1024 + at);
  store16(y + at, w), store16(y + 1024 + at, v);
  store4(y + 2048 + t * 4, load4(x + 2048 + t * 4));
  cp_async16(smem_addr(smem) + at, x + at, t & 1);
  cp_async_commit();
  cp_async16(smem_addr(smem) + 1024 + at, x + 1024 + at);
  cp_async16_head(smem_addr(smem) + 2048 + at, x + at, t % 17);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  store16(y + 2304 + at, load_shared(smem + ((63 - t) * 16)));
  store16(y + 3328 + at, load_shared(smem + 1024 + ((63 - t) * 16)));
  store16(y + 4352 + at, load_shared(smem + 2048 + ((63 - t) * 16)));
  store8(y + 5376 + t * 8, load8(x + t * 8));""",
).replace(
    "LLMC_KERNEL",
    "LLMC_DEVICE Vec16 load_shared(const unsigned char* p) { return *reinterpret_cast<const Vec16*>(p); }\nLLMC_KERNEL",
    1,
)


def _memory(lab: CardLab) -> None:
    x = rng().integers(0, 256, 2304, np.uint8)
    y = lab.empty((5888,), np.uint8)
    lab.kernel_of(MEMORY)((1,), 64, 3072, lab.array(x), y)
    got, rows = y.numpy(), x[:1024].reshape(64, 16)
    equal("load16_stream, store16", got[:1024], x[1024:2048])
    equal("load16, store16", got[1024:2048], x[:1024])
    equal("load4, store4", got[2048:2304], x[2048:])
    masked = np.where(np.arange(64)[:, None] % 2 == 1, rows, 0)[::-1]
    equal("cp_async16 with and without data", got[2304:3328], masked.reshape(-1).astype(np.uint8))
    heads = np.where(np.arange(16) < np.arange(64)[:, None] % 17, rows, 0)[::-1]
    equal("cp_async16_head", got[4352:5376], heads.reshape(-1).astype(np.uint8))
    equal("load8, store8", got[5376:], x[:512])
    equal("cp_async16", got[3328:4352], x[1024:2048].reshape(64, 16)[::-1].reshape(-1))


WARP = kernel(
    64,
    "const float* x, float* y, u32* n",
    """  const int t = threadIdx.x, warp = t / 32;
  LLMC_SMEM(smem);
  float* shared = reinterpret_cast<float*>(smem);
  u32* counter = reinterpret_cast<u32*>(smem) + 64;
  const float v[4] = {x[t], x[64 + t], x[128 + t], x[192 + t]};
  y[t] = warp_sum(x[t]), y[64 + t] = warp_max(x[t]), y[128 + t] = warp_sum4(v);
  y[192 + t] = bf16_lo(float_bits(x[t])) + bf16_hi(float_bits(x[t]));
  y[288 + t] = min_of(v[0], v[1]), y[352 + t] = max_of(v[0], v[1]);
  if (t == 0) counter[0] = 0;
  __syncthreads();
  if (warp == 0) {
    shared[t] = x[t];
    named_barrier_arrive(1, 64);
  } else {
    named_barrier_sync(1, 64);
    y[256 + t - 32] = shared[t - 32];
  }
  named_barrier_sync(2, 64);
  smem_atomic_add(smem_addr(counter), t);
  atomic_add(n, 1u), atomic_max(n + 1, t), atomic_exchange(n + 2, 7u);
  atomic_add(reinterpret_cast<float*>(n + 3), 0.5f);
  __syncthreads();
  if (t == 0) n[4] = counter[0];""",
)


def _warp(lab: CardLab) -> None:
    x = rng().integers(-50, 50, 256).astype(np.float32)
    y, n = lab.empty((416,), np.float32), lab.array(np.zeros(5, np.uint32))
    lab.kernel_of(WARP)((1,), 64, 1024, lab.array(x), y, n)
    got, lanes = y.numpy(), x.reshape(4, 2, 32)
    equal("warp_sum", got[:64].reshape(2, 32), np.repeat(lanes[0].sum(1)[:, None], 32, 1))
    equal("warp_max", got[64:128].reshape(2, 32), np.repeat(lanes[0].max(1)[:, None], 32, 1))
    equal("warp_sum4", got[128:192].reshape(2, 32), np.repeat(lanes.sum(2).T, 8, 1))
    halves = x[:64].view(np.uint16).view(bfloat16).astype(np.float32).reshape(64, 2)
    equal("bf16_lo, bf16_hi", got[192:256], halves.sum(1))
    equal("named_barrier", got[256:288], x[:32])
    equal("min_of", got[288:352], np.minimum(x[:64], x[64:128]))
    equal("max_of", got[352:], np.maximum(x[:64], x[64:128]))
    counts = n.numpy()
    equal("atomics", counts[[0, 1, 2, 4]], np.array([64, 63, 7, 2016], np.uint32))
    equal("atomic_add of floats", counts[3:4].view(np.float32), np.array([32.0]))


FLAGS = kernel(
    32,
    "u32* count, u32* flags, float* data, float* out",
    """  if (threadIdx.x == 0) {
    data[blockIdx.x] = blockIdx.x + 1.0f;
    store_release(flags + blockIdx.x, 1u);
    __threadfence();
    if (atomic_add(count, 1u) == gridDim.x - 1) {
      __threadfence();
      float sum = 0.0f;
      for (u32 i = 0; i < gridDim.x; i++)
        if (load_acquire(flags + i)) sum += data[i];
      out[0] = sum;
    }
  }""",
)


def _flags(lab: CardLab) -> None:
    blocks = 200
    out = lab.empty((1,), np.float32)
    count, flags = lab.array(np.zeros(1, np.uint32)), lab.array(np.zeros(blocks, np.uint32))
    lab.kernel_of(FLAGS)((blocks,), 32, 0, count, flags, lab.empty((blocks,), np.float32), out)
    equal("store_release, load_acquire", out.numpy(), np.array([blocks * (blocks + 1) / 2]))


GRID = kernel(
    64,
    "float* x",
    """  grid_wait();
  const float v = x[(blockIdx.x * 64 + threadIdx.x) ^ 64];
  grid_launch_dependents();
  x[gridDim.x * 64 + ((blockIdx.x * 64 + threadIdx.x) ^ 64)] = v + 1.0f;""",
)


def _grid(lab: CardLab) -> None:
    """Each launch, started early by the one before, adds one to what that one wrote."""
    n, steps = 4096, 40
    x = lab.array(np.zeros((steps + 1) * n, np.float32))
    k = lab.kernel_of(GRID)
    for step in range(steps):
        part = DeviceArray(lab.emulator, x.pointer + step * n * 4, (2 * n,), np.float32)
        k((n // 64,), 64, 0, part, programmatic=step > 0, wait=False)
    lab.emulator.call("cuCtxSynchronize")
    equal("grid_wait", x.numpy().reshape(-1, n)[-1], np.full(n, float(steps)))


REGISTERS = kernel(
    384,
    "float* out",
    """  if (threadIdx.x >= 128) setmaxnreg_inc<232>();
  else setmaxnreg_dec<40>();
  out[threadIdx.x] = threadIdx.x;""",
)


def _registers(lab: CardLab) -> None:
    out = lab.empty((384,), np.float32)
    lab.kernel_of(REGISTERS)((1,), 384, 0, out)
    equal("setmaxnreg", out.numpy(), np.arange(384.0))


CHECKS: tuple[Check, ...] = (
    Check("conversions", (CONVERT,), _convert),
    Check("conversions of e4m3", (CONVERT8,), _convert8, ("mma_e4m3",)),
    Check("approximations", (APPROXIMATE,), _approximate),
    Check("memory, cp.async", (MEMORY,), _memory),
    Check("warps, barriers, atomics", (WARP,), _warp),
    Check("flags between blocks", (FLAGS,), _flags),
    Check("programmatic dependent launch", (GRID,), _grid),
    *MATRIX_CHECKS,
    Check("setmaxnreg", (REGISTERS,), _registers, ("setmaxnreg",)),
)


def for_card(lab: CardLab) -> Iterator[Check]:
    """The checks that the card's target has the features for."""
    for check in CHECKS:
        if all(lab.emulator.target.has(need) for need in check.needs):
            yield check


def named(device_header: str) -> set[str]:
    """The primitives that device.cuh declares."""
    return set(re.findall(r"^LLMC_DEVICE [\w ]+?(\w+)\(", device_header, re.M)) | set(
        re.findall(r"^LLMC_MMA\((\w+),", device_header, re.M)
    )
