"""Fixtures of the runtime's tests: the compiled reference device and engine folders around it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime import Engine
from tests.runtime import engine_folders, reference_oracle
from tests.runtime.engine_folders import MakeEngine, Windows

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cxx() -> list[str]:
    """A C++ compiler's command."""
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


@pytest.fixture(scope="session")
def reference_library(build_reference: Callable[[Windows], Path]) -> Path:
    """The reference device with one KV group, which keeps all positions."""
    return build_reference((None,))


@pytest.fixture(scope="session")
def build_reference(cxx: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Windows], Path]:
    """build_reference(windows) -> the reference device with a KV group for each window."""
    return functools.cache(lambda windows: compile_reference(cxx, windows, tmp_path_factory.mktemp("reference")))


def compile_reference(
    cxx: list[str], windows: Windows, folder: Path, headers: Path = engine_folders.ABI_FOLDER
) -> Path:
    library = folder / "model.so"
    names = ("VOCAB", "NUM_VALID", "BLOCK_TOKENS", "POISON", "NAP", "STUCK")
    defines = [f"-D{name}={getattr(reference_oracle, name)}" for name in names]
    defines.append(f"-DWINDOWS={','.join(str(window or 0) for window in windows)}")
    source = HERE / "reference_device.cc"
    command = [
        *cxx,
        "-O2",
        "-shared",
        "-fPIC",
        *defines,
        f"-I{headers}",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def make_engine(reference_library: Path, tmp_path: Path) -> MakeEngine:
    """make_engine(name="engine", **manifest fields) -> folder of a sealed engine."""

    def make(name: str = "engine", **options: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        engine_folders.fill_engine(folder, reference_library, **options)
        return folder

    return make


@pytest.fixture(scope="session")
def shared_engine(reference_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine folder that tests only read."""
    folder = tmp_path_factory.mktemp("engines") / "engine"
    folder.mkdir()
    engine_folders.fill_engine(folder, reference_library)
    return folder


@pytest.fixture
def engine(shared_engine: Path) -> Iterator[Engine]:
    """A loaded engine that must have all its blocks back at the end of the test."""
    with Engine.load(shared_engine) as engine:
        free = engine.num_free_blocks
        yield engine
        assert engine.num_free_blocks == free, "blocks leaked"
        engine.check_integrity()
