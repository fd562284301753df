"""Kernels for AArch64 compute what those for x86 do, bit for bit: compiled here, run by qemu's emulation of the CPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from llmc.codegen.cpu.target import CpuTarget, cpu_target, machine_features, missing_features
from llmc.codegen.cpu.toolchain import LANGUAGE, Toolchain, compile_library, find_toolchain
from llmc.ir.formats import Scheme
from tests.kernels.conftest import HERE, harness_sources
from tests.models.test_plan import GRAPHS, rendered

QEMU = "qemu-aarch64"
TARGETS = {"aarch64": "cortex-a72", "aarch64+dotprod": "neoverse-n1", "aarch64+dotprod+i8mm": "max"}  # and who has it


def program(target: CpuTarget, toolchain: Toolchain, folder: Path) -> Path:
    """The battery as a static program."""
    sources = harness_sources() | {"battery.cpp": (HERE / "battery.cpp").read_text()}
    for name, text in sources.items():
        (folder / name).write_text(text)
    out = folder / target.name
    macros = [f"-D{name}={value}" for name, value in target.macros]
    command = [*toolchain.command, "-target", f"{target.arch}-linux-musl", f"-mcpu={target.mcpu}", "-static"]
    units = sorted(name for name in sources if name.endswith(".cpp"))
    flags = [*LANGUAGE, *macros, "-fno-sanitize=undefined", "-nostdlib++", "-I."]
    done = subprocess.run([*command, *flags, *units, "-o", out], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What AVX2 computes."""
    target = cpu_target("x86-64-v3")
    if missing := missing_features(target, machine_features()):
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    found = program(target, find_toolchain({}), tmp_path_factory.mktemp("x86"))
    return subprocess.run([found], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"no {QEMU} (Debian's qemu-user)")
@pytest.mark.parametrize("name", TARGETS)
def test_the_same_bits_as_on_x86(name: str, expected: list[str], tmp_path: Path) -> None:
    found = program(cpu_target(name), find_toolchain({}), tmp_path)
    run = subprocess.run([QEMU, "-cpu", TARGETS[name], found], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(expected) > 300
    assert [f"{a} {b}" for a, b in zip(expected, lines, strict=True) if a != b] == []


def test_an_engine_is_cross_compiled(tmp_path: Path) -> None:
    """A library for AArch64 (183) of the same plans, by a machine of any kind."""
    model = rendered(next(iter(GRAPHS.values()))(), Scheme.INT8)
    compile_library(model.sources, cpu_target("aarch64+dotprod"), tmp_path / "model.so", find_toolchain({}))
    header = (tmp_path / "model.so").read_bytes()[:20]
    assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:], "little") == 183
