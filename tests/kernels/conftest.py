"""Builds the kernels behind C functions, one library per CPU target that this machine can run."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from llmc.codegen.cpu.target import CpuTarget, cpu_target, machine_features, missing_features
from llmc.codegen.cpu.toolchain import Toolchain, compile_library, find_toolchain
from tests.kernels.coded_formats import header

VARIANTS = ("x86-64-v4+vnni+bf16+amx", "x86-64-v4+vnni+bf16", "x86-64-v4", "x86-64-v3", "generic")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kernels:
    """One built library and the target it was built for."""

    target: CpuTarget
    lib: ctypes.CDLL


@cache
def harness_sources() -> dict[str, str]:
    headers = {p.name: p.read_text() for p in files("llmc.templates.cpu").iterdir() if p.name.endswith(".h")}
    return headers | {p.name: p.read_text() for p in HERE.glob("harness*")} | {"harness_codes.h": header()}


def build(target: CpuTarget, toolchain: Toolchain, folder: Path) -> Path:
    """The harness for a target, built once per content: workers of pytest-xdist share `folder`."""
    content = repr((sorted(harness_sources().items()), target, toolchain))
    out = folder / f"harness-{hashlib.sha256(content.encode()).hexdigest()[:16]}.so"
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            private = out.with_suffix(".partial")
            compile_library(harness_sources(), target, private, toolchain)
            private.replace(out)
    return out


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "kernel-harness"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def load(target_name: str, toolchain: Toolchain, folder: Path) -> Kernels:
    target = cpu_target(target_name)
    missing = missing_features(target, machine_features())
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return Kernels(target, ctypes.CDLL(str(build(target, toolchain, folder))))


@pytest.fixture(params=VARIANTS, scope="session")
def kernels(request: pytest.FixtureRequest, library_folder: Path) -> Kernels:
    return load(request.param, find_toolchain({}), library_folder)


@pytest.fixture(scope="session")
def gcc_kernels(library_folder: Path) -> Kernels:
    """The best target of this machine, compiled by g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    return load("cpu", find_toolchain({"CXX": "g++"}), library_folder)
