"""The compiler driver: reproducible, hermetic, and clear when it cannot work."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from llmc.codegen.cpu import toolchain
from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cpu.toolchain import ToolchainError, compile_library, find_toolchain

EXPORT = 'extern "C" __attribute__((visibility("default")))'
SOURCES = {
    "answer.h": "constexpr int ANSWER = 42;\n",
    "model.cpp": f'#include "answer.h"\n{EXPORT} int answer() {{ return ANSWER; }}\n',
    "more/other.cpp": f"{EXPORT} int other() {{ return 7; }}\n",
}
GENERIC = cpu_target("generic")


def test_compiles_and_loads(tmp_path: Path) -> None:
    report = compile_library(SOURCES, GENERIC, tmp_path / "new folder" / "model.so", environ=without_cxx())
    library = ctypes.CDLL(str(tmp_path / "new folder" / "model.so"))
    assert (library.answer(), library.other()) == (42, 7)
    assert report.toolchain.startswith("zig ")


def without_cxx(**changes: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "CXX"} | changes


@pytest.mark.parametrize("cxx", ["", "g++"])
def test_same_bytes_from_other_folders(tmp_path: Path, cxx: str) -> None:
    built = []
    for name in ("a", "quite another place"):
        folder = tmp_path / name
        folder.mkdir()
        environ = without_cxx(TMPDIR=str(folder), LC_ALL="C.UTF-8" if name == "a" else "POSIX", CXX=cxx)
        compile_library(SOURCES, GENERIC, folder / "model.so", environ=environ)
        built.append((folder / "model.so").read_bytes())
    assert built[0] == built[1]
    assert str(tmp_path).encode() not in built[0]


def test_nothing_piles_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of these sources alone lies beside the library while it is made, and nowhere afterwards."""
    run, seen = toolchain._run, []

    def recording(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        run(command, folder, environ)
        local = Path(environ["ZIG_LOCAL_CACHE_DIR"])
        seen.append(local.is_relative_to(tmp_path / "out") and any(local.rglob("*.o")))

    monkeypatch.setattr(toolchain, "_run", recording)
    environ = without_cxx(TMPDIR=str(tmp_path / "no such folder"))
    compile_library(SOURCES, GENERIC, tmp_path / "out" / "model.so", environ=environ)
    assert len(seen) == 3 and all(seen)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.so"]


@pytest.mark.parametrize("name", ["it's a:b", 'x "y" $z #\\', "a\tb\nc"])
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    compile_library(SOURCES, GENERIC, tmp_path / name / "model.so", environ=without_cxx())
    assert ctypes.CDLL(str(tmp_path / name / "model.so")).answer() == 42
    assert [path.name for path in (tmp_path / name).iterdir()] == ["model.so"]


def test_read_only_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    blocked = tmp_path / "file"
    blocked.write_text("")  # root may write to a read-only folder, but nobody into a file
    for place in (str(home), str(blocked)):
        environ = without_cxx(HOME=place)
        environ.pop("XDG_CACHE_HOME", None)
        compile_library(SOURCES, GENERIC, tmp_path / "model.so", environ=environ)
    compile_library(SOURCES, GENERIC, tmp_path / "model.so", environ=without_cxx(XDG_CACHE_HOME=str(blocked)))


def test_compiler_errors_show_the_generated_line(tmp_path: Path) -> None:
    sources = {"steps/model.cpp": "int f() {\n  return undeclared;\n}\n"}
    with pytest.raises(ToolchainError, match=r"steps/model\.cpp:2:10: error: .*undeclared"):
        compile_library(sources, GENERIC, tmp_path / "model.so", environ=without_cxx())
    assert not (tmp_path / "model.so").exists()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="CXX is not set and the ziglang package is not installed: pip inst"):
        find_toolchain({})


def test_unusable_cxx(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="CXX='no-such-compiler' is not a program"):
        find_toolchain({"CXX": "no-such-compiler"})
    old = tmp_path / "g++-9"
    old.write_text("#!/bin/sh\necho 'g++ (Debian) 9.4.0'\n")
    old.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"9\.4\.0, older than gcc 12"):
        find_toolchain({"CXX": str(old)})


@pytest.mark.parametrize("name", ["/etc/model.cpp", "../model.cpp"])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolchainError, match="leaves the folder"):
        compile_library({name: ""}, GENERIC, tmp_path / "model.so", environ=without_cxx())
