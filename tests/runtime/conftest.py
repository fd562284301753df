"""Fixtures of the runtime's tests: the compiled reference device and engine folders around it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import engine_folders
import reference_oracle

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cxx():
    """A C++ compiler's command."""
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


@pytest.fixture(scope="session")
def reference_library(cxx, tmp_path_factory):
    library = tmp_path_factory.mktemp("reference") / "model.so"
    names = ("VOCAB", "NUM_VALID", "BLOCK_TOKENS", "POISON")
    defines = [f"-D{name}={getattr(reference_oracle, name)}" for name in names]
    source = HERE / "reference_device.cc"
    command = [
        *cxx,
        "-O2",
        "-shared",
        "-fPIC",
        *defines,
        f"-I{engine_folders.ABI_FOLDER}",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def make_engine(reference_library, tmp_path):
    """make_engine(name="engine", **manifest fields) -> folder of a sealed engine."""

    def make(name="engine", **options):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        engine_folders.fill_engine(folder, reference_library, **options)
        return folder

    return make


@pytest.fixture(scope="session")
def shared_engine(reference_library, tmp_path_factory):
    """An engine folder that tests only read."""
    folder = tmp_path_factory.mktemp("engines") / "engine"
    folder.mkdir()
    engine_folders.fill_engine(folder, reference_library)
    return folder
