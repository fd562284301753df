"""CPU targets as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmc.codegen.cpu.target import (
    DEFAULT_L2_BYTES,
    LEVELS,
    TargetError,
    cpu_target,
    machine_features,
    machine_l2_bytes,
    missing_features,
    native_target,
)
from llmc.compiler.targets.find import find_target


def features(*suffixes: str) -> frozenset[str]:
    level = LEVELS[0]
    extra = (f for e in level.extensions if e.suffix in suffixes for f in e.features)
    return frozenset((*level.features, *extra))


def test_named_targets() -> None:
    target = cpu_target("x86-64-v4+vnni+bf16")
    assert target.has("avx512_vnni") and target.has("avx512_bf16") and not target.has("amx_bf16")
    assert target.mcpu == "x86_64_v4+avx512vnni+avx512bf16"
    assert dict(target.macros).keys() == {"LLMC_AVX512", "LLMC_VNNI", "LLMC_BF16", "LLMC_L2_BYTES"}
    assert not cpu_target("x86-64-v4").has("avx512_vnni")
    assert cpu_target("generic").features == ("sse2",)


@pytest.mark.parametrize("name", ["", "x86-64-v5", "x86-64-v3+vnni", "x86-64-v4+vnni+vnni", "x86-64-v4+"])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        find_target(name)


@pytest.mark.parametrize("suffixes", [(), ("vnni",), ("vnni", "bf16"), ("vnni", "bf16", "amx")])
def test_a_machine_gets_all_it_has(suffixes: tuple[str, ...]) -> None:
    target = native_target(features(*suffixes), 1 << 21, "x86_64")
    named = cpu_target("+".join(("x86-64-v4", *suffixes)))
    assert (target.features, target.mcpu, target.flags) == (named.features, named.mcpu, named.flags)
    assert target.name == "cpu" and target.l2_bytes == 1 << 21


def test_a_half_present_extension_is_not_used() -> None:
    assert not native_target(features("amx") - {"amx_int8"}, 1 << 20, "x86_64").has("amx_tile")
    assert native_target(features() - {"avx512dq"}, 1 << 20, "x86_64").vector_bytes == 32
    assert native_target(frozenset({"sse2"}), 1 << 20, "x86_64").vector_bytes == 16


def test_other_architectures_are_refused() -> None:
    with pytest.raises(TargetError, match="no kernels for riscv64: build for one of cpu, x86-64-v4"):
        native_target(frozenset(), 1 << 20, "riscv64")
    with pytest.raises(TargetError, match="this aarch64 machine has no asimd"):
        native_target(frozenset({"sse2"}), 1 << 20, "aarch64")


def test_arm_machines_get_what_they_have(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm sve\n")
    target = native_target(machine_features(cpuinfo), 1 << 20, "aarch64")
    named = cpu_target("aarch64+dotprod+i8mm")
    assert (target.arch, target.features, target.mcpu) == (named.arch, named.features, named.mcpu)
    assert named.triple == "aarch64-linux-gnu.2.28" and named.has("asimddp") and not named.has("avx2")


def test_missing_features() -> None:
    assert missing_features(cpu_target("x86-64-v4+vnni"), features()) == ("avx512_vnni",)
    assert missing_features(cpu_target("x86-64-v4"), features()) == ()


def test_reading_the_machine(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx\n\nprocessor\t: 1\nflags\t\t: other\n")
    assert machine_features(info) == {"fpu", "sse2", "avx"}
    info.write_text("processor\t: 0\n")
    with pytest.raises(TargetError, match="no line 'flags'"):
        machine_features(info)
    with pytest.raises(TargetError, match="cannot read"):
        machine_features(tmp_path / "absent")
    size = tmp_path / "size"
    size.write_text("2048K\n")
    assert machine_l2_bytes(size) == 2 << 20
    assert machine_l2_bytes(tmp_path / "absent") == DEFAULT_L2_BYTES
