"""A warp's product as one operation, as unchecked twins take it: the same bits as its ldmatrix and mma one by one."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError, Emulator, Kernel

NUMBERS = {"bf16": bfloat16, "f16": np.float16}
# (rows, columns, steps) of fragments: as decode takes them, as prefill does, one load, odd numbers.
SHAPES = [(1, 1, 4), (4, 8, 4), (1, 2, 1), (3, 2, 3), (1, 1, 2)]
# A [16 rows, 16 steps], then B [8 columns, 16 steps], in shared memory as rows of 16 * steps numbers.
SOURCE = """#include "device.cuh"
LLMC_KERNEL(64, 1) k(const {type}* ab, float* c, int skew, int* asked) {{
  constexpr int R = {rows}, C = {columns}, S = {steps};
  LLMC_SMEM(raw);
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  auto* words = reinterpret_cast<unsigned short*>(raw);
  for (int i = t; i < (R * 16 + C * 8) * S * 16; i += 64) words[i] = ab[i].bits;
  __syncthreads();
  const u32 a = smem_addr(raw) + skew, b = a + R * 16 * S * 32;
  const auto a_at = [&](int step, int row) {{
    return a + (row * 16 + (lane & 15)) * S * 32 + step * 32 + (lane >> 4) * 16;
  }};
  const auto b_at = [&](int load) {{
    const int fragment = load * 2 + (lane >> 4), step = fragment / C, column = fragment % C;
    return b + (column * 8 + (lane & 7)) * S * 32 + step * 32 + (lane >> 3 & 1) * 16;
  }};
  float acc[R * C][4];
  for (int q = 0; q < R * C; q++)
    for (int v = 0; v < 4; v++) acc[q][v] = float(q + v * lane) * 0.37f + warp;
  const bool at_once = multiply_at_once<{type}, R, C, S>(acc, a_at, b_at);
  if (t == 0) *asked = at_once;
  u32 bits[4];
  for (int step = 0; !at_once && step < S; step++) {{
    for (int i = 0; i < R; i++) {{
      u32 rows[4];
      ldmatrix_x4(rows, a_at(step, i));
      for (int j = 0; j < C; j++) {{
        const int fragment = step * C + j, half = fragment % 2 * 2;
        ldmatrix_x4(bits, b_at(fragment / 2));
        mma_{type}(acc[i * C + j], rows, bits[half], bits[half + 1]);
      }}
    }}
  }}
  for (int q = 0; q < R * C; q++)
    for (int v = 0; v < 4; v++) c[(warp * R * C + q) * 128 + lane * 4 + v] = acc[q][v];
}}
LLMC_EXPORT(k)
"""


def _kernel(emulator: Emulator, checked: bool, number: str, shape: tuple[int, int, int]) -> Kernel:
    source = SOURCE.format(type=number, rows=shape[0], columns=shape[1], steps=shape[2])
    return emulator.kernel(build_twin(source, [TEMPLATES], checked=checked, name="product.cu"), "k")


def _count(shape: tuple[int, int, int]) -> int:
    return (shape[0] * 16 + shape[1] * 8) * shape[2] * 16


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_bits_as_one_by_one(emulator: Emulator, number: str, shape: tuple[int, int, int]) -> None:
    """Two warps; numbers of very different size, both zeros and subnormals, so that the order of sums shows."""
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(_count(shape)) * 2.0 ** rng.integers(-12, 6, _count(shape))
    x[::17], x[5::29], x[3::31] = 0.0, -0.0, 1e-7
    ab = x.astype(NUMBERS[number]).view(np.uint16)
    results = []
    for checked in (True, False):
        run = _kernel(emulator, checked, number, shape)
        for schedule in THREE_SCHEDULES:
            emulator.set_schedule(schedule)
            c, asked = emulator.empty((2 * shape[0] * shape[1] * 128,), np.float32), emulator.empty((1,), np.int32)
            run((1,), 64, 2 * len(ab), emulator.array(ab), c, 0, asked)
            results.append(c.numpy().view(np.uint32))
            assert asked.numpy()[0] == (not checked)
    assert all(np.array_equal(results[0], r) for r in results)
    assert np.isfinite(results[0].view(np.float32)).all()


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("skew", "message"), [(8, r"row address 0x\w*8 is not 16-byte aligned"), (16, "shared memory access out of bounds")]
)
def test_bad_addresses_are_reported(emulator: Emulator, checked: bool, skew: int, message: str) -> None:
    ab = np.zeros(_count((1, 2, 1)), np.uint16)
    c, asked = emulator.empty((256 * 2,), np.float32), emulator.empty((1,), np.int32)
    with pytest.raises(CudaError, match=message):
        _kernel(emulator, checked, "bf16", (1, 2, 1))((1,), 64, 2 * len(ab), emulator.array(ab), c, skew, asked)
