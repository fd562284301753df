"""Compiles generated C++ into a shared library: the pinned ziglang wheel, or the compiler that $CXX names.

The same sources and target give the same bytes: files are compiled by relative name in a folder of their own, nothing
is taken from the machine but the compiler, and the library carries no build id.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ToolchainError(RuntimeError):
    """No usable compiler, or one that refused the sources; the message is for people."""


class CompileTarget(Protocol):
    """What the compiler needs to know of a CPU target (codegen.cpu.target.CpuTarget)."""

    @property
    def triple(self) -> str: ...
    @property
    def mcpu(self) -> str: ...
    @property
    def flags(self) -> tuple[str, ...]: ...
    @property
    def macros(self) -> tuple[tuple[str, str], ...]: ...


class Kind(enum.Enum):
    ZIG = "zig"
    CLANG = "clang"
    GCC = "gcc"


@dataclass(frozen=True)
class Toolchain:
    kind: Kind
    version: str
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind.value} {self.version}"


@dataclass(frozen=True)
class CompileReport:
    toolchain: str
    command: tuple[str, ...]  # of one source, for people to repeat
    seconds: float


GCC_MINIMUM = 12
CLANG_MINIMUM = 16
_INSTALL = "pip install ziglang==0.17.1, or set CXX to g++ >= 12 or clang++ >= 16"

# No fast-math and no contraction: canonical arithmetic is what the source says. The rest keeps the code freestanding.
LANGUAGE = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
]
_LINK = ["-shared", "-Wl,--build-id=none", "-Wl,-s"]


def _first_line(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


def _from_cxx(cxx: str) -> Toolchain:
    command = tuple(cxx.split())
    if not command or shutil.which(command[0]) is None:
        raise ToolchainError(f"CXX={cxx!r} is not a program: {_INSTALL}")
    line = _first_line(command)
    found = re.search(r"(\d+)\.\d+(?:\.\d+)?", line) if line else None
    if line is None or found is None:
        raise ToolchainError(f"CXX={cxx!r} does not tell its version: {_INSTALL}")
    kind = Kind.CLANG if "clang" in line else Kind.GCC
    minimum = CLANG_MINIMUM if kind is Kind.CLANG else GCC_MINIMUM
    if int(found.group(1)) < minimum:
        raise ToolchainError(f"CXX={cxx!r} is {line}, older than {kind.value} {minimum}: {_INSTALL}")
    return Toolchain(kind, found.group(0), command)


def find_toolchain(environ: Mapping[str, str] = os.environ) -> Toolchain:
    """$CXX if it is set, else the ziglang wheel. ToolchainError says what was tried and what to install."""
    cxx = environ.get("CXX")
    if cxx:
        return _from_cxx(cxx)
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError(f"no C++ toolchain: CXX is not set and the ziglang package is not installed: {_INSTALL}")
    return Toolchain(Kind.ZIG, importlib.metadata.version("ziglang"), (sys.executable, "-m", "ziglang", "c++"))


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _cache_folder(environ: Mapping[str, str], fallback: Path) -> Path:
    """Where zig keeps its start-up objects between builds: the user's cache, or `fallback` where that is read-only.

    What it makes of the sources goes into the build's own folder: sources differ every time, and a cache of them only
    grows.
    """
    base = environ.get("XDG_CACHE_HOME") or (environ["HOME"] + "/.cache" if environ.get("HOME") else None)
    folder = Path(base) / "llmc" / "zig" if base else None
    return folder if folder is not None and folder.is_absolute() and _writable(folder) else fallback


def _scratch_parent(out: Path) -> Path | None:
    """Beside the library, where whoever clears away what a killed build left finds it; else the system's folder.

    A dependency file of zig has no way to write a colon or a control character that is part of a path.
    """
    return None if any(c == ":" or not c.isprintable() for c in str(out.parent)) else out.parent


def _target_flags(toolchain: Toolchain, target: CompileTarget) -> list[str]:
    macros = [f"-D{name}={value}" for name, value in target.macros]
    if toolchain.kind is Kind.ZIG:
        return ["-target", target.triple, f"-mcpu={target.mcpu}", "-fno-sanitize=undefined", *macros]
    return [*target.flags, *macros]


def _link_flags(toolchain: Toolchain) -> list[str]:
    if toolchain.kind is Kind.GCC:
        return [*_LINK, "-nodefaultlibs", "-lc", "-lgcc"]
    return [*_LINK, "-nostdlib++"]


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    shown = "; ".join(line.strip() for line in lines[:3]) or f"exit status {done.returncode}"
    raise ToolchainError(f"{command[0]} refused the generated sources: {shown}")


def _check_names(sources: Mapping[str, str]) -> list[str]:
    for name in sources:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise ToolchainError(f"source name {name!r} leaves the folder it is compiled in")
    units = sorted(name for name in sources if name.endswith(".cpp"))
    if not units:
        raise ToolchainError("nothing to compile: no source ends in .cpp")
    return units


def compile_library(
    sources: Mapping[str, str],
    target: CompileTarget,
    out: Path,
    toolchain: Toolchain | None = None,
    environ: Mapping[str, str] = os.environ,
    extra_flags: Sequence[str] = (),
) -> CompileReport:
    """Compiles the .cpp of `sources` (name -> text, headers included) into the shared library `out`.

    Units are compiled side by side and linked in order of name. ToolchainError carries the compiler's first errors,
    as file:line of the sources.
    """
    toolchain = toolchain or find_toolchain(environ)
    units = _check_names(sources)
    began = time.monotonic()
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_scratch_parent(out), prefix=".llmc-compile-") as temporary:
        folder = Path(temporary) / "src"
        for name, text in sources.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        local = Path(temporary) / "cache"
        caches = {"ZIG_GLOBAL_CACHE_DIR": str(_cache_folder(environ, local)), "ZIG_LOCAL_CACHE_DIR": str(local)}
        settings = {**environ, **caches, "LC_ALL": "C"}
        flags = [*_target_flags(toolchain, target), *LANGUAGE, f"-ffile-prefix-map={folder}=.", *extra_flags]
        objects = [unit.removesuffix(".cpp").replace("/", "_") + ".o" for unit in units]
        commands = [
            [*toolchain.command, *flags, "-I.", "-c", unit, "-o", obj] for unit, obj in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda command: _run(command, folder, settings), commands))
        target_only = _target_flags(toolchain, target) if toolchain.kind is Kind.ZIG else list(target.flags)
        _run([*toolchain.command, *target_only, *objects, *_link_flags(toolchain), "-o", "model.so"], folder, settings)
        shutil.copyfile(folder / "model.so", out)
    shown = tuple(part for part in commands[0] if not part.startswith("-ffile-prefix-map"))
    return CompileReport(toolchain.name, shown, time.monotonic() - began)
