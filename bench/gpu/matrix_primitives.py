"""The matrix units and TMA on integers so small that every sum is exact, whatever its order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

from bench.gpu.card import CardLab
from bench.gpu.checks import Array, Check, equal, kernel, rng

MATRIX = kernel(
    32,
    "const unsigned char* x, u32* y",
    """  LLMC_SMEM(smem);
  const int t = threadIdx.x;
  *reinterpret_cast<Vec16*>(smem + t * 16) = load16(x + t * 16);
  __syncthreads();
  u32 r[4], s[4];
  ldmatrix_x4(r, smem_addr(smem) + t * 16);
  ldmatrix_x4_trans(s, smem_addr(smem) + t * 16);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) y[i * 32 + t] = r[i], y[128 + i * 32 + t] = s[i];""",
)


def _ldmatrix(lab: CardLab) -> None:
    x = rng().integers(0, 65536, (4, 8, 8)).astype(np.uint16)
    y = lab.empty((2, 4, 32), np.uint32)
    lab.kernel_of(MATRIX)((1,), 32, 512, lab.array(x), y)
    for name, got, m in (("", y.numpy()[0], x), ("_trans", y.numpy()[1], x.swapaxes(1, 2))):
        pairs = np.ascontiguousarray(m).view(np.uint32)  # row r, columns 2c and 2c+1: lane 4r + c
        equal(f"ldmatrix_x4{name}", got, pairs.reshape(4, 32))


def _small(shape: tuple[int, ...], kind: object) -> Array:
    return rng().integers(-4, 5, shape).astype(kind)  # type: ignore[call-overload, no-any-return]


def _mma_source(name: str, acc: str) -> str:
    return kernel(
        32,
        f"const u32* a, const u32* b, {acc}* d",
        f"""  const int t = threadIdx.x;
  {acc} c[4] = {{1, 1, 1, 1}};
  const u32 f[4] = {{a[t], a[32 + t], a[64 + t], a[96 + t]}};
  {name}(c, f, b[t], b[32 + t]);
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) d[i * 32 + t] = c[i];""",
    )


def _mma(name: str, kind: object, acc: str) -> Callable[[CardLab], None]:
    def run(lab: CardLab) -> None:
        k = 32 // np.dtype(kind).itemsize  # type: ignore[call-overload]
        a, b = _small((16, k), kind), rng().integers(-3, 4, (8, k)).astype(kind)  # type: ignore[call-overload]
        # a register: row t / 4 (+ 8), a word of the row's first or second half
        wa = a.view(np.uint32).reshape(2, 8, 2, 4).transpose(2, 0, 1, 3).reshape(4, 32)
        wb = b.view(np.uint32).reshape(8, 2, 4).transpose(1, 0, 2).reshape(2, 32)
        d = lab.empty((4, 32), np.float32 if acc == "float" else np.int32)
        lab.kernel_of(_mma_source(name, acc))((1,), 32, 0, lab.array(wa), lab.array(wb), d)
        want = a.astype(np.int32) @ b.astype(np.int32).T + 1
        equal(name, _tile(d.numpy()), want)

    return run


# A product out of shared memory, 16 x 32 by 32 x 8, as the linears and attention put it together.
SHARED_PRODUCT = kernel(
    32,
    "const unsigned char* ab, float* d",
    """  LLMC_SMEM(smem);
  const int t = threadIdx.x;
  for (int i = t; i < 96; i += 32) *reinterpret_cast<Vec16*>(smem + i * 16) = load16(ab + i * 16);
  __syncthreads();
  const u32 at = smem_addr(smem);
  const auto a_at = [&](int step, int) { return at + (t & 15) * 64 + step * 32 + (t >> 4) * 16; };
  const auto b_at = [&](int) { return at + 1024 + (t & 7) * 64 + (t >> 3) * 16; };
  float c[1][4] = {{1, 1, 1, 1}};
  if (!multiply_at_once<bf16, 1, 1, 2>(c, a_at, b_at)) {
    u32 a[4], b[4];
    ldmatrix_x4(b, b_at(0));
    LLMC_UNROLL
    for (int step = 0; step < 2; step++) {
      ldmatrix_x4(a, a_at(step, 0));
      mma_bf16(c[0], a, b[step * 2], b[step * 2 + 1]);
    }
  }
  LLMC_UNROLL
  for (int i = 0; i < 4; i++) d[i * 32 + t] = c[0][i];""",
)


def _shared_product(lab: CardLab) -> None:
    ab, d = _small((24, 32), bfloat16), lab.empty((4, 32), np.float32)
    lab.kernel_of(SHARED_PRODUCT)((1,), 32, 1536, lab.array(ab), d)
    whole = ab.astype(np.int32)
    equal("product out of shared memory", _tile(d.numpy()), whole[:16] @ whole[16:].T + 1)


def _tile(quads: Array) -> Array:
    """[4, 32] of every lane's C fragment -> [16, 8]."""
    return quads.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1).reshape(16, 8)


def _tma_source(rank: int) -> str:
    at = ", ".join(("x", "y", "z")[:rank])
    return kernel(
        32,
        "const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, int bytes, int x, int y, int z",
        f"""  LLMC_SMEM(smem);
  const u32 at = smem_addr(smem), bar = at + 16384, second = bar + 8;
  if (threadIdx.x == 0) {{
    mbar_init(bar, 1), mbar_init(second, 1);
    mbar_fence_init();
    mbar_expect_tx(bar, bytes);
    tma_load_{rank}d(at, &from, bar, {at});
    mbar_wait(bar, 0);
    mbar_arrive(second);
    mbar_wait(second, 0);
    fence_proxy_async();
    tma_store_{rank}d(&to, at, {at});
    tma_commit();
    tma_wait_read<0>();
    tma_wait<0>();
  }}""",
    )


def _tma(rank: int) -> Callable[[CardLab], None]:
    def run(lab: CardLab) -> None:
        for swizzle in (0, 32, 64, 128):
            inner = swizzle // 2 or 64
            shape, box = (5, 6, 2 * inner)[3 - rank :], (2, 4, inner)[3 - rank :]
            a = rng().integers(1, 60000, shape).astype(np.uint16)
            for at in ([0, 0, 0], [inner, 4, 4], [inner + 8, 5, 4], [-8, -1, -1]):
                source, target = lab.array(a), lab.array(np.zeros(shape, np.uint16))
                maps = [lab.emulator.tensor_map(m, box, swizzle) for m in (source, target)]
                lab.kernel_of(_tma_source(rank))((1,), 32, 17408, *maps, int(np.prod(box)) * 2, *at)
                want = np.zeros(shape, np.uint16)
                inside = tuple(
                    slice(max(0, start), max(0, min(n, start + size)))
                    for n, size, start in zip(shape, box, at[:rank][::-1], strict=True)
                )
                want[inside] = a[inside]
                equal(f"tma {rank}d, swizzle {swizzle}, at {at[:rank]}", target.numpy(), want)

    return run


def _wgmma_source(kind: str, acc: str, n: int, registers: bool) -> str:
    call = (
        f"wgmma_rs<{kind}>(d, f, b + k * 2, k > 0);"
        if registers
        else f"wgmma_ss<{kind}>(d, a + k * 2, b + k * 2, k > 0);"
    )
    fragment = """    u32 f[4];
    ldmatrix_x4(f, tile + swizzled((warp * 16 + lane % 16) * 128 + k * 32 + lane / 16 * 16));
"""
    return kernel(
        128,
        f"const __grid_constant__ TensorMap ma, const __grid_constant__ TensorMap mb, {acc}* out",
        f"""  LLMC_SMEM(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 tile = smem_addr(smem), other = tile + 8192, bar = other + {n} * 128;
  if (threadIdx.x == 0) {{
    mbar_init(bar, 1);
    mbar_fence_init();
  }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    mbar_expect_tx(bar, 8192 + {n} * 128);
    tma_load_2d(tile, &ma, bar, 0, 0);
    tma_load_2d(other, &mb, bar, 0, 0);
  }}
  mbar_wait(bar, 0);
  {acc} d[{n // 2}];
  const u64 a = wgmma_desc_sw128(tile), b = wgmma_desc_sw128(other);
  LLMC_UNROLL
  for (int k = 0; k < 4; k++) {{
{fragment if registers else ""}    wgmma_fence();
    {call}
    wgmma_commit();
    wgmma_wait<0>();
  }}
  (void)a;
  LLMC_UNROLL
  for (int i = 0; i < {n // 2}; i++) {{
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * {n} + column] = d[i];
  }}""",
    ).replace(
        "LLMC_KERNEL",
        "LLMC_DEVICE u32 swizzled(u32 at) { return at ^ (at >> 3 & 0x70); }\nLLMC_KERNEL",
        1,
    )


def _wgmma(kind: str, n: int, registers: bool) -> Check:
    acc = "int" if kind == "s8" else "float"
    dtype = {"bf16": bfloat16, "f16": np.float16, "e4m3": float8_e4m3fn, "s8": np.int8}[kind]
    name, source = f"wgmma_{'rs' if registers else 'ss'} {kind} n{n}", _wgmma_source(kind, acc, n, registers)

    def run(lab: CardLab) -> None:
        k = 128 // np.dtype(dtype).itemsize
        a, b = _small((64, k), dtype), rng().integers(-3, 4, (n, k)).astype(dtype)
        da, db = lab.array(a), lab.array(b)
        maps = (lab.emulator.tensor_map(da, (64, k), 128), lab.emulator.tensor_map(db, (n, k), 128))
        out = lab.empty((64, n), np.int32 if acc == "int" else np.float32)
        lab.kernel_of(source)((1,), 128, 8192 + n * 128 + 1024, *maps, out)
        equal(name, out.numpy(), a.astype(np.int32) @ b.astype(np.int32).T)

    return Check(name, (source,), run, ("wgmma",))


def _mma_check(name: str, kind: object, acc: str, feature: str) -> Check:
    return Check(name, (_mma_source(name, acc),), _mma(name, kind, acc), (feature,))


MATRIX_CHECKS: tuple[Check, ...] = (
    Check("ldmatrix", (MATRIX,), _ldmatrix),
    _mma_check("mma_bf16", bfloat16, "float", "mma_bf16"),
    _mma_check("mma_f16", np.float16, "float", "mma_f16"),
    _mma_check("mma_s8", np.int8, "int", "mma_s8"),
    _mma_check("mma_e4m3", float8_e4m3fn, "float", "mma_e4m3"),
    Check("product out of shared memory", (SHARED_PRODUCT,), _shared_product, ("mma_bf16",)),
    *[Check(f"tma {rank}d", (_tma_source(rank),), _tma(rank), ("tma",)) for rank in (1, 2, 3)],
    *[
        _wgmma(kind, n, registers)
        for kind in ("bf16", "f16", "e4m3", "s8")
        for n in (8, 16, 32, 64, 128, 192, 256)
        for registers in (False, True)
    ],
)
