"""The compiler keeps the micro-kernels' accumulators in registers: no vector is stored to the stack."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cpu.toolchain import compile_library, find_toolchain
from tests.kernels.conftest import harness_sources

SPILL = re.compile(r"\bvmov\w*\s+%[xyz]mm\d+, .*\(%r[sb]p\b")
TILES = "4tile|10codes_tile|12widened_tile|14widened_direct|8amx_tile|10score_tile|10value_tile"
KERNELS = re.compile(rf"^(_ZN4llmc\w*?(?:{TILES})I\w+):[^\n]*$(.*?)^\.Lfunc_end", re.M | re.S)


def assembly(target_name: str, unit: str, folder: Path) -> str:
    """The unit's assembly, by the flags that engines are compiled with."""
    sources = harness_sources()
    target = cpu_target(target_name)
    report = compile_library({"x.cpp": ""}, target, folder / "x.so", find_toolchain({}))
    command = [part for part in report.command if part not in ("-c", "x.cpp", "x.o", "-o")]
    for name, text in sources.items():
        (folder / name).write_text(text)
    subprocess.run([*command, "-S", unit, "-o", "unit.s"], cwd=folder, check=True)
    return (folder / "unit.s").read_text()


@pytest.mark.parametrize(
    ("target", "unit", "least"),
    [
        ("x86-64-v4+vnni+bf16+amx", "harness_linear.cpp", 30),
        ("x86-64-v4+vnni+bf16", "harness_linear.cpp", 30),
        ("x86-64-v3", "harness_linear.cpp", 10),
        ("x86-64-v4+vnni+bf16", "harness_codes.cpp", 100),
        ("x86-64-v4", "harness_codes.cpp", 100),
        ("x86-64-v3", "harness_codes.cpp", 25),
        ("x86-64-v4+vnni+bf16+amx", "harness_attention.cpp", 8),
        ("x86-64-v3", "harness_attention.cpp", 8),
    ],
)
def test_micro_kernels_do_not_spill(tmp_path: Path, target: str, unit: str, least: int) -> None:
    found = KERNELS.findall(assembly(target, unit, tmp_path))
    assert len(found) >= least
    spills = {name: lines for name, body in found if (lines := SPILL.findall(body))}
    assert not spills


def test_the_pattern_sees_a_spill() -> None:
    assert SPILL.search("\tvmovups\t%zmm3, 64(%rsp)                # 64-byte Spill")
    assert SPILL.search("\tvmovaps\t%ymm3, -32(%rbp)")
    assert not SPILL.search("\tvmovups\t%zmm3, 64(%rdi)")
    assert not SPILL.search("\tvmovups\t64(%rsp), %zmm3")
