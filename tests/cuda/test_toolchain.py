"""NVRTC without a GPU: budgets on every target, reproducible and cached cubins, errors at the template's line, and the
parameter block of each cubin against its twin."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from llmc.codegen.cuda.kernel import render, symbol_of
from llmc.codegen.cuda.linear.params import LinearMmaParams, LinearParams, LinearWgmmaParams
from llmc.codegen.cuda.target import nvrtc
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.emulator.pairs import cubin_hash
from tests.cuda import sass
from tests.cuda.kernels.catalog import for_target
from tests.cuda.kernels.linear_catalog import LINEARS
from tests.cuda.kernels.rows_examples import examples


@pytest.mark.parametrize("arch", TARGETS)
def test_budgets(arch: str) -> None:
    """sm_100a compiles under the same budgets, though its kernels are not tuned yet. Nothing but weights is read ahead
    of grid_wait: what the compilers made of it must hold too. Which bytes a linear copies there, the emulator shows."""
    target = TARGETS[arch]
    found = []
    for p in for_target(target):
        compiled = nvrtc.compile_cubin(render(p, "kernel"), arch)
        assert not compiled.log, compiled.log
        r, code = sass.resources(compiled.cubin)["kernel"], sass.instructions(compiled.cubin)["kernel"]
        found += [f"{p.template} {p.label}: {v}" for v in sass.judge(r, Counter(code), p.budget(target))]
        assert ("ACQBULK" in code and "PREEXIT" in code) == target.has("pdl"), f"{p.template} {p.label}"
        copies = ("LDGSTS", "UTMALDG") if isinstance(p, LinearParams) and p.tile.tokens <= 64 else ()
        early = [op for op in sass.early_accesses(code) if op.split(".")[0] not in copies]
        found += [f"{p.template} {p.label}: {early} ahead of grid_wait"] if early else []
        assert r.shared <= 1024, f"static shared memory {r.shared}"  # CUDA reserves 1 KiB on sm_90 and later
        assert -(-r.registers // 8) * 8 * p.threads * p.blocks_per_sm <= target.regs_sm, p
    assert not found, "\n".join(found)


def test_what_is_read_ahead_of_the_wait_is_seen() -> None:
    head = '#include "device.cuh"\nLLMC_KERNEL(32, 1) kernel(const float* __restrict__ x, float* __restrict__ y) {\n'
    for body, early in (
        ("grid_wait(); y[threadIdx.x] = bits_float(load4(x + threadIdx.x));", []),
        ("const u32 v = load4(x + threadIdx.x); grid_wait(); y[threadIdx.x] = bits_float(v);", ["LDG.E"]),
        ("grid_wait(); y[threadIdx.x] = x[threadIdx.x];", ["LDG.E.CONSTANT"]),
        ("y[threadIdx.x] = bits_float(load4(x + threadIdx.x));", []),
    ):
        found = sass.instructions(nvrtc.compile_cubin(f"{head}  {body}\n}}\n", "sm_90a").cubin)["kernel"]
        assert sass.early_accesses(found) == early, (body, found)


def test_python_s_own_bytes_are_not_written_to() -> None:
    """NVRTC fills buffers that the caller brings; an empty log has one byte, and Python shares bytes of that length."""
    compiled = nvrtc.compile_cubin('extern "C" __global__ void nothing() {}', "sm_80")
    assert not compiled.log
    assert [bytes([value])[0] for value in range(256)] == list(range(256))


def test_a_target_is_built_in_parallel_and_cached(tmp_path: Path) -> None:
    jobs = [(f"{symbol_of(p)}.cu", render(p), "sm_90a") for p in for_target(TARGETS["sm_90a"])]
    start, cpu = time.perf_counter(), time.process_time()
    built = nvrtc.compile_all(jobs, tmp_path)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"{len(jobs)} kernels for sm_90a: {wall:.1f} s wall, {used:.1f} s of CPU")
    stamps = [p.stat().st_mtime_ns for p in built]
    assert nvrtc.compile_all(jobs, tmp_path) == built
    assert [p.stat().st_mtime_ns for p in built] == stamps


def test_cubins_are_reproducible(tmp_path: Path) -> None:
    p = LINEARS[0]
    script = (
        "import sys; from llmc.codegen.cuda.target import nvrtc; "
        "sys.stdout.buffer.write(nvrtc.compile_cubin(sys.stdin.read(), 'sm_90a').cubin)"
    )
    images = {
        subprocess.run(
            [sys.executable, "-c", script],
            input=render(p).encode(),
            capture_output=True,
            check=True,
            cwd=cwd,
            env=os.environ | {"PYTHONHASHSEED": seed, "TZ": tz},
        ).stdout
        for cwd, seed, tz in ((tmp_path, "1", "UTC"), (Path.home(), "2", "Asia/Tokyo"))
    }
    assert len(images) == 1 and cubin_hash(images.pop())


def test_wgmma_that_ptxas_serializes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Sums that are touched before wgmma_wait. No kernel of the catalog does (test_budgets); a tile that only an engine
    has must not be the first in silence."""
    source = """#include "device.cuh"
LLMC_KERNEL(128, 1) kernel(float* out, int rounds) {
  LLMC_SMEM(raw);
  const u64 a = wgmma_desc_sw128(smem_addr(raw)), b = wgmma_desc_sw128(smem_addr(raw) + 8192);
  float d[32] = {};
  for (int i = 0; i < rounds; i++) {
    wgmma_fence();
    wgmma_ss<bf16>(d, a, b, true);
    wgmma_commit();
    BETWEEN
    wgmma_wait<0>();
  }
  for (int i = 0; i < 32; i++) out[i * 128 + threadIdx.x] = d[i];
}
"""
    nvrtc.compile_each({"kernel": source.replace("BETWEEN", "")}, "sm_90a")
    assert not caplog.messages
    touched = source.replace("BETWEEN", "for (int i = 0; i < 32; i++) d[i] *= 2.0f;")
    nvrtc.compile_each({"kernel": touched}, "sm_90a")
    assert len(caplog.messages) == 1 and "kernel for sm_90a: " in caplog.messages[0], caplog.messages
    assert "wgmma.mma_async instructions are serialized" in caplog.messages[0]


def test_errors_name_the_template_line() -> None:
    files = nvrtc.headers()
    lines = files["rows.cuh"].splitlines()
    at = next(i for i, row in enumerate(lines) if "v = over_lanes<Op, 32>(v);" in row)
    lines[at] = "  v = over_lanes<Op, 32>(w);"
    files["rows.cuh"] = "\n".join(lines)
    with pytest.raises(nvrtc.CompileError, match=rf"rows\.cuh\({at + 1}\): error"):
        nvrtc.compile_cubin(
            '#include "rows.cuh"\nLLMC_KERNEL(32, 1) k(float* p) { leave_total<Sum>(p[threadIdx.x], p); }\n',
            "sm_80",
            files=files,
        )


def test_a_kernel_is_refused_where_it_cannot_run() -> None:
    hopper = next(p for p in LINEARS if isinstance(p, LinearWgmmaParams))
    assert hopper.rejects(TARGETS["sm_80"]) == "sm_80 has no wgmma"
    assert hopper.rejects(TARGETS["sm_90a"]) is None
    deep = dataclasses.replace(next(p for p in LINEARS if isinstance(p, LinearMmaParams)), stages=12)
    assert "shared memory" in (deep.rejects(TARGETS["sm_89"]) or "")


def test_illegal_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="counter seqs"):
        dataclasses.replace(next(iter(examples())), counter="seqs")
    with pytest.raises(ValueError, match="stages 1"):
        dataclasses.replace(LINEARS[0], stages=1)
