"""GPUs as data: consistent with themselves, with the architectures, and with the emulator's devices."""

from __future__ import annotations

from dataclasses import fields

import pytest

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cuda.target.capabilities import TARGETS, CudaTarget
from llmc.codegen.cuda.target.gpus import GIB, GPUS, Gpu, gpu_for
from llmc.codegen.work import Unit
from llmc.compiler.targets.find import find_target, target_names
from llmc.emulator import devices
from llmc.runtime.artifact.manifest import CPU
from tests.cuda.kernels.catalog import for_target


def gpus() -> list[Gpu]:
    return list(GPUS.values())


@pytest.mark.parametrize("gpu", gpus(), ids=lambda g: g.name)
def test_the_emulated_device_is_the_same(gpu: Gpu) -> None:
    device = devices.parse_device(gpu.device)
    assert device.runs(gpu.arch) and (device.major, device.minor) == gpu.capability
    for name in ("sms", "memory_bytes", "l2_bytes", "smem_optin", "smem_sm", "regs_sm", "threads_sm"):
        assert getattr(gpu, name) == getattr(device, name), name
    assert device.name.endswith(gpu.product)
    assert (gpu.name == "h100") == (device == devices.H100)


def test_every_architecture_has_a_gpu() -> None:
    assert [gpu_for(arch).arch for arch in TARGETS] == list(TARGETS)  # type: ignore[union-attr]
    assert gpu_for("sm_75") is None


@pytest.mark.parametrize("gpu", gpus(), ids=lambda g: g.name)
def test_a_gpu_is_its_architecture_to_kernels(gpu: Gpu) -> None:
    arch = TARGETS[gpu.arch]
    assert all(getattr(gpu, f.name) == getattr(arch, f.name) for f in fields(CudaTarget))
    assert for_target(gpu) == for_target(arch)


@pytest.mark.parametrize("gpu", gpus(), ids=lambda g: g.name)
def test_figures_are_of_the_right_size(gpu: Gpu) -> None:
    """A wrong unit, a figure with sparsity, or a swapped column would fall outside."""
    bf16 = gpu.peaks.bf16
    assert bf16 is not None and gpu.peaks.f16 == bf16 and gpu.peaks.f32 is not None
    assert 1.9 < (gpu.peaks.s8 or 0) / bf16 < 4.1
    assert gpu.has("mma_e4m3") == (gpu.peaks.e4m3 is not None)
    # multiply-accumulates per SM and clock at about 1.4 to 2.6 GHz: tensor cores have powers of two
    per_clock = bf16 / gpu.sms / 2 / 1.8e9
    assert 300 < per_clock < 4400
    assert 100 < bf16 / gpu.bandwidth < 450  # operations per byte where compute begins to bound
    assert gpu.memory_bytes % GIB == 0 and gpu.l2_bytes < gpu.memory_bytes // 100


def test_every_target_is_found_in_one_place() -> None:
    assert find_target("h100").product == GPUS["h100"].product
    assert find_target("x86-64-v3").kind == CPU
    assert {"cpu", "generic", *GPUS} <= set(target_names())
    with pytest.raises(TargetError, match=r"unknown target 'h1000': expected one of cpu, .*a100.*b200"):
        find_target("h1000")


def test_units_are_peaks() -> None:
    for unit in Unit:
        assert GPUS["h100"].peaks.of(unit) is not None
    assert GPUS["a100"].peaks.of(Unit.E4M3) is None
