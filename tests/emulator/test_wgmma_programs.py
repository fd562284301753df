"""Random programs of wgmma, against numpy: accumulators in flight together, fresh registers that are added to, A from
registers, groups waited for out of step, operands overwritten between them, two warpgroups at their own paces."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin
from llmc.emulator.session import Emulator, Kernel, Mode, Schedule

ACCUMULATORS, STEPS, GROUPS = 3, 4, 2  # per warpgroup; of 32 bytes along K; warpgroups
SEEDS = 3
FORMATS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "s8": np.int8}

# An instruction is four words: what, accumulator, step along K, whether it accumulates (or a number).
PROGRAM = """#include "device.cuh"
using E = ELEMENT;
using Acc = ACC;
constexpr int kRegs = REGS, kRow = 128 / sizeof(E);

LLMC_DEVICE void fill(unsigned char* to, const unsigned char* from, int rows, int t) {
  for (int i = t; i < rows * 128; i += 128) to[i ^ (i >> 7 & 7) << 4] = from[i];
}
LLMC_DEVICE void fragment(u32 (&a)[4], const unsigned char* from, int step, int t) {
  for (int r = 0; r < 4; r++)
    a[r] = load4(from + (t / 32 * 16 + t % 32 / 4 + (r & 1) * 8) * 128 + step * 32 + (r >> 1) * 16 + t % 4 * 4);
}

LLMC_KERNEL(GROUPS * 128, 1) k(const int* programs, int length, const unsigned char* a, const unsigned char* b,
                                Acc* out) {
  LLMC_SMEM(raw);
  const int group = threadIdx.x / 128, t = threadIdx.x % 128;
  constexpr int kRows = 64 + 2 * kRegs;
  unsigned char* mine = reinterpret_cast<unsigned char*>(raw) + group * kRows * 128;
  const u32 at_a = smem_addr(mine), at_b = at_a + 64 * 128;
  Acc d[3][kRegs] = {};
  int stored = 0;
  for (int i = 0; i < length; i++) {
    const int* op = programs + (group * length + i) * 4;
    auto& acc = d[op[1]];
    const bool add = op[3];
    switch (op[0]) {
      case 0: wgmma_ss<E>(acc, wgmma_desc_sw128(at_a + op[2] * 32), wgmma_desc_sw128(at_b + op[2] * 32), add); break;
      case 1: {
        u32 fragments[4];
        fragment(fragments, a + op[3] / 2 * 64 * 128, op[2], t);
        wgmma_rs<E>(acc, fragments, wgmma_desc_sw128(at_b + op[2] * 32), op[3] & 1);
        break;
      }
      case 2: wgmma_fence(); break;
      case 3: wgmma_commit(); break;
      case 4: wgmma_wait<0>(); break;
      case 5: wgmma_wait<1>(); break;
      case 6: wgmma_wait<2>(); break;
      case 7:  // its registers are the thread's: keep them, and count on
        for (int v = 0; v < kRegs; v++) {
          const int row = t / 32 * 16 + t % 32 / 4 + (v >> 1 & 1) * 8, col = v / 4 * 8 + t % 4 * 2 + (v & 1);
          out[((group * length + stored) * 64 + row) * 2 * kRegs + col] = acc[v];
          acc[v] += Acc(row % 5);
        }
        stored++;
        break;
      case 8:  // other operands
        named_barrier_sync(1 + group, 128);
        fill(mine, a + op[3] * 64 * 128, 64, t);
        fill(mine + 64 * 128, b + op[3] * 2 * kRegs * 128, 2 * kRegs, t);
        fence_proxy_async();
        named_barrier_sync(1 + group, 128);
        break;
    }
  }
}
LLMC_EXPORT(k)
"""
SS, RS, FENCE, COMMIT, WAIT, STORE, FILL = 0, 1, 2, 3, 4, 7, 8
Instruction = tuple[int, int, int, int]


def program(rng: random.Random, length: int, tiles: int) -> list[Instruction]:
    """A program that breaks no rule: accumulators are stored once their groups are waited for, operands are replaced
    when nothing is in flight, everything is waited for at the end."""
    ops: list[Instruction] = [(FILL, 0, 0, 0), (FENCE, 0, 0, 0)]
    committed = completed = 0
    last = [-1] * ACCUMULATORS  # the group of the last wgmma on it

    def wait(pending: int) -> None:
        nonlocal completed
        ops.append((WAIT + pending, 0, 0, 0))
        if committed - completed > pending:
            completed = committed - pending
            ops.append((FENCE, 0, 0, 0))

    while len(ops) < length - 20:
        match rng.choices(("multiply", "commit", "wait", "store", "fill"), (10, 4, 3, 4, 1))[0]:
            case "multiply":
                acc, step, add = rng.randrange(ACCUMULATORS), rng.randrange(STEPS), rng.randrange(2)
                for _ in range(rng.choice((1, 1, 2, 9))):
                    kind = rng.choice((SS, SS, SS, RS))
                    ops.append((kind, acc, step, add + 2 * rng.randrange(tiles) if kind == RS else add))
                    add = 1
                last[acc] = committed
            case "commit":
                ops.append((COMMIT, 0, 0, 0))
                committed += 1
            case "wait":
                wait(rng.randrange(3))
            case "store":
                ops += [(STORE, acc, 0, 0) for acc in range(ACCUMULATORS) if last[acc] < completed]
                ops.append((FENCE, 0, 0, 0))
            case "fill":
                if committed == completed and max(last) < completed:
                    ops.append((FILL, 0, 0, rng.randrange(tiles)))
    ops.append((COMMIT, 0, 0, 0))
    committed += 1
    wait(0)
    ops += [(STORE, acc, 0, 0) for acc in range(ACCUMULATORS)]
    return ops + [(FENCE, 0, 0, 0)] * (length - len(ops))


def meaning(ops: list[Instruction], a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """What the program stores; a[tiles, 64, K] and b[tiles, N, K] in float64."""
    values = [np.zeros((64, b.shape[1])) for _ in range(ACCUMULATORS)]
    tile, stored, wide = 0, [], a.shape[2] // STEPS
    for what, acc, step, number in ops:
        k = slice(step * wide, (step + 1) * wide)
        match what:
            case 0 | 1:
                left = a[tile if what == SS else number // 2, :, k]
                values[acc] = (values[acc] if number % 2 else 0) + left @ b[tile, :, k].T
            case 7:
                stored.append(values[acc])
                values[acc] = values[acc] + np.arange(64)[:, None] % 5
            case 8:
                tile = number
    return stored


def twin(emulator: Emulator, element: str, columns: int, checked: bool) -> Kernel:
    source = PROGRAM.replace("ELEMENT", element).replace("ACC", "int" if element == "s8" else "float")
    source = source.replace("REGS", str(columns // 2)).replace("GROUPS", str(GROUPS))
    return emulator.kernel(build_twin(source, [TEMPLATES], checked=checked, name="programs.cu"), "k")


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("element", "columns"), [("bf16", 8), ("f16", 16), ("e4m3", 8), ("s8", 16)])
def test_programs_compute_what_numpy_does(emulator: Emulator, element: str, columns: int, checked: bool) -> None:
    """Small integers, so that every sum is exact."""
    tiles, length, kind = 3, 120, np.dtype(FORMATS[element])
    k = twin(emulator, element, columns, checked)
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        a, b = (rng.integers(-3, 4, (tiles, rows, 128 // kind.itemsize)).astype(kind) for rows in (64, columns))
        programs = [program(random.Random(seed * GROUPS + g), length, tiles) for g in range(GROUPS)]
        device = [emulator.array(x) for x in (np.array(programs, np.int32), a.view(np.uint8), b.view(np.uint8))]
        for mode in Mode:
            emulator.set_schedule(Schedule(mode, seed))
            out = emulator.empty((GROUPS, length, 64, columns), np.int32 if element == "s8" else np.float32)
            k((1,), 128 * GROUPS, GROUPS * (64 + columns) * 128, device[0], length, device[1], device[2], out)
            got = out.numpy()
            for g, ops in enumerate(programs):
                want = meaning(ops, a.astype(np.float64), b.astype(np.float64))
                assert np.array_equal(got[g, : len(want)], np.array(want)), f"seed {seed}, {mode.name}, warpgroup {g}"
            out.free()
        for x in device:
            x.free()
