"""The emulator's fragment, accumulator and swizzle maps against CuTe's: operands are laid out by CuTe's
tables, run
through the emulated mma and wgmma, and the result, read back by CuTe's tables, must be A * B^T."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from llmc.codegen.cuda.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin, cuda_include
from llmc.emulator.session import THREE_SCHEDULES, Emulator

SOURCE = """#include "device.cuh"
#define FRAGMENT(name, Acc)                                                      \\
  LLMC_KERNEL(32, 1) frag_##name(const u32* a, const u32* b, Acc* c) {           \\
    const int t = threadIdx.x;                                                   \\
    u32 x[4] = {a[t * 4], a[t * 4 + 1], a[t * 4 + 2], a[t * 4 + 3]};              \\
    Acc d[4] = {};                                                               \\
    mma_##name(d, x, b[t * 2], b[t * 2 + 1]);                                    \\
    for (int i = 0; i < 4; i++) c[t * 4 + i] = d[i];                             \\
  }                                                                              \\
  LLMC_EXPORT(frag_##name)
FRAGMENT(bf16, float)
FRAGMENT(f16, float)
FRAGMENT(e4m3, float)
FRAGMENT(s8, int)

// 8 KiB images of A and B in shared memory; steps of 16 elements along K begin at the given bytes.
LLMC_KERNEL(128, 1) wg_ss(const u32* a, const u32* b, float* c, int mode, int stride, int s0, int s1, int s2, int s3) {
  LLMC_SMEM(raw);
  for (int i = threadIdx.x; i < 2048; i += 128) reinterpret_cast<u32*>(raw)[i] = a[i];
  for (int i = threadIdx.x; i < 2048; i += 128) reinterpret_cast<u32*>(raw)[i + 2048] = b[i];
  fence_proxy_async();
  __syncthreads();
  const u32 smem = smem_addr(raw);
  const u64 base = u64(1) << 16 | u64(stride >> 4) << 32 | u64(mode) << 62;
  const int steps[4] = {s0, s1, s2, s3};
  float d[32] = {};
  wgmma_fence();
  for (int k = 0; k < 4; k++)
    wgmma_ss<bf16>(d, base | (smem + steps[k]) >> 4, base | (smem + 8192 + steps[k]) >> 4, k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < 32; i++) c[threadIdx.x * 32 + i] = d[i];
}
LLMC_EXPORT(wg_ss)

#define REGISTERS(T, Acc)                                                                       \\
  LLMC_KERNEL(128, 1) rs_##T(const u32* a, const u32* b, Acc* c) {                              \\
    LLMC_SMEM(raw);                                                                             \\
    for (int i = threadIdx.x; i < 512; i += 128) reinterpret_cast<u32*>(raw)[i] = b[i];         \\
    fence_proxy_async();                                                                        \\
    __syncthreads();                                                                            \\
    const u64 desc = u64(smem_addr(raw) >> 4) | u64(1) << 16 | u64(256 >> 4) << 32 | u64(3) << 62; \\
    const int t = threadIdx.x;                                                                  \\
    u32 x[4] = {a[t * 4], a[t * 4 + 1], a[t * 4 + 2], a[t * 4 + 3]};                             \\
    Acc d[32] = {};                                                                             \\
    wgmma_fence();                                                                              \\
    wgmma_rs<T>(d, x, desc, true);                                                              \\
    wgmma_commit();                                                                             \\
    wgmma_wait<0>();                                                                            \\
    for (int i = 0; i < 32; i++) c[t * 32 + i] = d[i];                                          \\
  }                                                                                             \\
  LLMC_EXPORT(rs_##T)
REGISTERS(bf16, float)
REGISTERS(f16, float)
REGISTERS(e4m3, float)
REGISTERS(s8, int)
"""
DTYPES = {"bf16": bfloat16, "f16": np.float16, "e4m3": float8_e4m3fn, "s8": np.int8}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    headers = [Path(p) / "cutlass_library" / "source" / "include" for p in sys.path]
    cutlass = next((h for h in headers if (h / "cute" / "tensor.hpp").is_file()), None)
    cuda = cuda_include()
    if cutlass is None or not (cuda / "crt" / "host_defines.h").is_file() or not (cuda / "cccl").is_dir():
        pytest.skip("needs the CUTLASS headers: pip install llmc[oracle]")
    program = tmp_path_factory.mktemp("cute") / "tables"
    subprocess.run(
        [
            "g++",
            "-O0",
            "-std=c++17",
            "-w",
            f"-I{cutlass}",
            f"-I{cuda}",
            f"-I{cuda}/cccl",
            str(Path(__file__).parent / "cute_tables.cpp"),
            "-o",
            str(program),
        ],
        check=True,
    )
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: np.array(values.split(), np.int64) for name, values in (line.split(":") for line in lines)}


@pytest.fixture(scope="module")
def twin() -> Path:
    return build_twin(SOURCE, [TEMPLATES], checked=True, name="oracle.cu")


def _values(kind: str, rows: int, k: int, seed: int) -> np.ndarray:
    """Small integers: exact in every format and every order of summation."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, k)).astype(DTYPES[kind])


def _gather(matrix: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Elements in the table's order (column-major indices into the matrix), as 32-bit words."""
    return np.ascontiguousarray(matrix.T.reshape(-1)[table]).view(np.uint32)


def _scatter(values: np.ndarray, table: np.ndarray, rows: int, columns: int) -> np.ndarray:
    out = np.full(rows * columns, np.nan)
    out[table] = values.astype(np.float64)
    return out.reshape(columns, rows).T


@pytest.mark.parametrize("kind", DTYPES)
def test_mma_fragments(emulator: Emulator, tables: dict[str, np.ndarray], twin: Path, kind: str) -> None:
    k = 32 if np.dtype(DTYPES[kind]).itemsize == 1 else 16
    a, b = _values(kind, 16, k, 1), _values(kind, 8, k, 2)
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        c = emulator.empty((128,), np.int32 if kind == "s8" else np.float32)
        emulator.kernel(twin, f"frag_{kind}")(
            (1,),
            32,
            0,
            emulator.array(_gather(a, tables[f"{kind}.A"])),
            emulator.array(_gather(b, tables[f"{kind}.B"])),
            c,
        )
        assert np.array_equal(
            _scatter(c.numpy(), tables[f"{kind}.C"], 16, 8), a.astype(np.float64) @ b.astype(np.float64).T
        )


@pytest.mark.parametrize(("swizzle", "mode", "stride"), [("sw128", 1, 1024), ("sw64", 2, 512), ("sw32", 3, 256)])
def test_wgmma_descriptors(
    emulator: Emulator, tables: dict[str, np.ndarray], twin: Path, swizzle: str, mode: int, stride: int
) -> None:
    a, b = _values("bf16", 64, 64, 3), _values("bf16", 64, 64, 4)
    place = tables[swizzle].reshape(64, 64)

    def image(matrix: np.ndarray) -> np.ndarray:
        out = np.zeros(4096, np.uint16)
        out[place // 2] = matrix.view(np.uint16)
        return out.view(np.uint32)

    steps = [int(place[0, 16 * i]) for i in range(4)]
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        c = emulator.empty((128 * 32,), np.float32)
        emulator.kernel(twin, "wg_ss")(
            (1,), 128, 16384, emulator.array(image(a)), emulator.array(image(b)), c, mode, stride, *steps
        )
        assert np.array_equal(
            _scatter(c.numpy(), tables["wgmma64.C"], 64, 64), a.astype(np.float64) @ b.astype(np.float64).T
        )


@pytest.mark.parametrize("kind", DTYPES)
def test_wgmma_a_from_registers(emulator: Emulator, tables: dict[str, np.ndarray], twin: Path, kind: str) -> None:
    size = np.dtype(DTYPES[kind]).itemsize
    k = 32 // size
    a, b = _values(kind, 64, k, 5), _values(kind, 64, k, 6)
    rows = tables["sw32"].reshape(64, 64)[:, :16]  # one atom wide: 32 bytes of each row
    image = np.zeros(2048, np.uint8)
    for byte in range(32):
        image[rows[:, byte // 2] + byte % 2] = b.view(np.uint8).reshape(64, 32)[:, byte]
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        c = emulator.empty((128 * 32,), np.int32 if kind == "s8" else np.float32)
        emulator.kernel(twin, f"rs_{kind}")(
            (1,),
            128,
            2048,
            emulator.array(_gather(a, tables[f"wgmma.A{8 * size}"])),
            emulator.array(image.view(np.uint32)),
            c,
        )
        assert np.array_equal(
            _scatter(c.numpy(), tables["wgmma64.C"], 64, 64), a.astype(np.float64) @ b.astype(np.float64).T
        )
