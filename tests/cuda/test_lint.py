"""What the templates promise: inline PTX in one file, contracts that match their specs, the same
primitives on both
sides, nothing that only one of GPU and emulator understands."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from catalog import ALL

from llmc.codegen.cuda.kernel import KernelParams, render, symbol_of
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import TWIN_INCLUDE

BINDERS = sorted(TEMPLATES.glob("*.cu.j2"))
HEADERS = [p for p in sorted(TEMPLATES.glob("*.cuh")) if p.name != "device.cuh"]


def test_inline_ptx_only_in_device_cuh() -> None:
    for path in [*HEADERS, *BINDERS]:
        assert not re.search(r"\basm\b", path.read_text()), path.name


@pytest.mark.parametrize("path", HEADERS, ids=lambda p: p.name)
def test_kernel_bodies_are_the_same_code_on_both_sides(path: Path) -> None:
    """No architecture or emulator switches, no static shared memory, no system headers: a twin proves
    the cubin's source."""
    text = path.read_text()
    for word in ("__CUDA_ARCH__", "LLMC_EMU", "__shared__", "#ifdef", "#if ", "<cuda"):
        assert word not in text, f"{path.name}: {word}"
    assert set(re.findall(r'#include "([^"]+)"', text)) <= {p.name for p in TEMPLATES.glob("*.cuh")}


@pytest.mark.parametrize("path", BINDERS, ids=lambda p: p.name)
def test_binders_are_short_and_open_with_a_contract(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 60
    head = []
    for line in lines:
        if not line.startswith("//"):
            break
        head.append(line)
    for word in ("params", "abi", "launch", "limits", "numerics"):
        assert any(re.match(rf"// {word} ", line) for line in head), f"{path.name}: no {word} line"


@pytest.mark.parametrize("p", ALL, ids=lambda p: f"{p.template}-{p.label}")
def test_contract_matches_the_spec(p: KernelParams) -> None:
    text = render(p)
    named = re.search(r"^// params +(.*)$", text, re.M)
    assert named
    fields = {re.sub(r"\(.*?\)", "", f).strip() for f in re.sub(r"\([^)]*\)", "", named[1]).split(",")}
    assert fields == {f.name for f in dataclasses.fields(p)}  # type: ignore[arg-type]
    if p.smem_bytes:
        assert f"dynamic shared memory {p.smem_bytes} B" in text
    bounds = re.search(r"LLMC_KERNEL\((\d+), (\d+)\)", text)
    assert bounds and (int(bounds[1]), int(bounds[2])) == (p.threads, p.blocks_per_sm)


@pytest.mark.parametrize("path", BINDERS, ids=lambda p: p.name)
def test_contract_abi_counts_the_parameters(path: Path) -> None:
    """Every parameter of the kernel is named in the abi line's tuple."""
    p = next(q for q in ALL if path.name == f"{q.template}.cu.j2")
    text = render(p)
    signature = re.search(rf"LLMC_KERNEL\(\d+, \d+\) {symbol_of(p)}\((.*?)\)", text, re.S)
    abi = re.search(r"// abi +\((.*?)\)[;\n]", re.sub(r"\n// {6,}", " ", text), re.S)
    assert signature and abi
    count = len(signature[1].split(","))
    words = re.sub(r"\[[^\]]*\]", "", abi[1])
    named = len(
        [w for w in re.split(r",| and ", words) if w.strip() and not w.strip().startswith(("both", "sin alike"))]
    )
    assert named + words.count("sin alike") == count, (words, signature[1])


def test_both_sides_have_the_same_primitives() -> None:
    def functions(text: str, marker: str) -> set[str]:
        return set(re.findall(rf"^{marker} [\w ]+?(\w+)\(", text, re.M))

    device = (TEMPLATES / "device.cuh").read_text()
    gpu_side = device.split("#endif  // LLMC_EMU")[0]
    gpu = functions(gpu_side, "LLMC_DEVICE") | set(re.findall(r"^LLMC_MMA\((\w+),", device, re.M))
    emulated = set()
    for name in ("types.h", "device.h"):
        emulated |= functions((TWIN_INCLUDE / name).read_text(), "inline")
    assert gpu == emulated


def test_no_paths_of_a_machine_in_rendered_source() -> None:
    for p in ALL:
        assert not re.search(r"/(home|root|tmp|work|opt|usr)/", render(p))
