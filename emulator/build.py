"""Compiles the emulator's C++: the fake driver (`libcuda.so.1`, and the same as `libllmc_emu.so`) and twins.

Everything is cached by content: the key covers every source byte, the flags and the compiler's version.
`libcuda.so.1` lies alone in its folder, so that only a process whose LD_LIBRARY_PATH names that folder
finds it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llmc.emulator.cache import cache_dir, expect, forget_unused, found, publish

ROOT = Path(__file__).resolve().parent
TWIN_INCLUDE = ROOT / "include" / "llmc_emu"
# No contraction, as NVRTC's --fmad=false: a twin rounds where the kernel rounds.
# Frames touch their pages one by one (clash protection): none steps over the guard page of a fiber's stack.
_COMMON = (
    *("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off", "-gdwarf-4"),
    "-fstack-clash-protection",
)


class BuildError(RuntimeError):
    """The C++ compiler refused a source; the message is the compiler's own."""


@dataclass(frozen=True)
class HostCompiler:
    """A C++17 compiler for this machine: its command line prefix, and whether it is clang (flags differ)."""

    name: str
    command: tuple[str, ...]
    clang: bool

    def version(self) -> str:
        return _version(self.command)

    def arch_flags(self) -> tuple[str, ...]:
        """x86-64-v3 (AVX2, F16C): what the emulator needs of the machine it runs on."""
        if self.clang:  # zig spells it differently, and would otherwise build for the machine at hand
            return ("-target", "x86_64-linux-gnu", "-mcpu=x86_64_v3", "-fno-sanitize=undefined")
        return ("-march=x86-64-v3",)

    @staticmethod
    def gxx() -> HostCompiler:
        return HostCompiler("g++", (os.environ.get("CXX", "g++"),), clang=False)

    @staticmethod
    def zig() -> HostCompiler:
        """The pinned `ziglang` wheel: clang, hermetic."""
        return HostCompiler("zig", (sys.executable, "-m", "ziglang", "c++"), clang=True)

    @staticmethod
    def default() -> HostCompiler:
        """g++ where there is one, else zig."""
        return HostCompiler.gxx() if shutil.which(os.environ.get("CXX", "g++")) else HostCompiler.zig()


@cache
def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def cuda_include() -> Path:
    """Folder of cuda.h from the `nvidia-cuda-runtime` wheel (extra `cuda`); BuildError when it is not
    installed."""
    for entry in sys.path:
        folder = Path(entry) / "nvidia" / "cu13" / "include"
        if (folder / "cuda.h").is_file():
            return folder
    raise BuildError(
        "cuda.h not found on sys.path: expected nvidia/cu13/include of the wheel "
        "nvidia-cuda-runtime; install llmc[cuda]"
    )


def _digest(*parts: bytes | str) -> str:
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:24]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{command[0]} failed:\n{done.stderr.strip()}")


@dataclass(frozen=True)
class Driver:
    """The built driver: `library` for ctypes; `folder` goes into LD_LIBRARY_PATH of a cuda-python process."""

    library: Path
    folder: Path


def build_driver(
    compiler: HostCompiler | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Driver:
    """Compiles core and driver (about half a minute on two cores, once per content). `progress` is told how many of
    how many sources are done."""
    compiler = compiler or HostCompiler.default()
    include = cuda_include()
    sources = sorted([*(ROOT / "core").glob("*.cpp"), *(ROOT / "driver").glob("*.cpp")])
    headers = [*sorted((ROOT / "core").glob("*.h")), *sorted((ROOT / "driver").glob("*.h"))]
    headers += [TWIN_INCLUDE / "abi.h", TWIN_INCLUDE / "formats.h"]
    flags = [*_COMMON, *compiler.arch_flags(), "-O2", "-Wall", "-Wextra", f"-I{include}"]
    base = _digest(*[h.read_bytes() for h in headers], *_COMMON, compiler.version())
    objects = {s: cache_dir() / "objects" / f"{s.stem}-{_digest(base, s.read_bytes())}.o" for s in sources}
    folder = cache_dir() / f"driver-{_digest(*[o.name for o in objects.values()])}"
    library, fake = folder / "libllmc_emu.so", folder / "fake" / "libcuda.so.1"
    if found(folder) and found(library) and found(fake):
        return Driver(library, fake.parent)

    def compile_one(source: Path) -> None:
        final = objects[source]
        if found(final):
            return
        expect(final)
        with tempfile.TemporaryDirectory() as tmp:
            out = Path(tmp) / "out.o"
            _run([*compiler.command, *flags, "-c", str(source), "-o", str(out)])
            publish(out, final)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(compile_one, sources), start=1):
            progress(done, len(sources))
    link = [*compiler.command, *_link_flags(compiler), "-shared", *map(str, objects.values()), "-lpthread", "-ldl"]
    for path in (library, fake):
        with tempfile.TemporaryDirectory() as tmp:
            out = Path(tmp) / path.name
            _run([*link, f"-Wl,-soname,{path.name}", "-o", str(out)])
            publish(out, path)
    forget_unused(cache_dir())  # a new driver: that of another version may be out of use
    return Driver(library, fake.parent)


def _link_flags(compiler: HostCompiler) -> tuple[str, ...]:
    return ("-target", "x86_64-linux-gnu") if compiler.clang else ()


def twin_flags(compiler: HostCompiler, checked: bool) -> list[str]:
    """Flags of a twin. Checked twins are instrumented at every load and store, so nothing may be vectorised:
    the instrumentation pass skips accesses wider than 16 bytes."""
    flags = [
        *_COMMON,
        *compiler.arch_flags(),
        "-x",
        "c++",
        "-DLLMC_EMU",
        "-fno-exceptions",
        "-fno-rtti",
        f"-I{TWIN_INCLUDE}",
        "-w" if compiler.clang else "-Wno-unknown-pragmas",
    ]
    if not checked:
        # A loop that g++ proves to run over the end of an array is a bug, not an optimisation.
        gcc_only = () if compiler.clang else ("-Werror=aggressive-loop-optimizations",)
        return [*flags, "-O2", *gcc_only]
    flags += ["-O1", "-fsanitize=thread", "-include", str(TWIN_INCLUDE / "hooks.h")]
    # Indices beyond a local array trap as well: the hooks leave a thread's own stack alone.
    flags += ["-fsanitize=bounds"]
    flags += ["-fsanitize-trap=bounds" if compiler.clang else "-fsanitize-undefined-trap-on-error"]
    if compiler.clang:
        return [
            *flags,
            "-fno-vectorize",
            "-fno-slp-vectorize",
            "-mllvm",
            "-tsan-instrument-read-before-write",
        ]
    return [*flags, "-fno-tree-vectorize"]


def build_twin(
    source: str,
    includes: Sequence[Path],
    *,
    checked: bool,
    compiler: HostCompiler | None = None,
    name: str = "kernel.cu",
) -> Path:
    """Compiles CUDA source (which includes device.cuh) to a twin; returns the cached shared object.

    `checked` twins report races, uninitialised reads, and every bad access by source line, and run on
    one core.
    Raises BuildError with the compiler's message.
    """
    compiler = compiler or HostCompiler.default()
    flags = twin_flags(compiler, checked)
    seen = [p.read_bytes() for folder in includes for p in sorted(folder.glob("*.cuh"))]
    headers = [p.read_bytes() for p in sorted(TWIN_INCLUDE.glob("*.h"))]
    # The include folders' content counts, not where they are: a checkout elsewhere finds the same twin.
    key = _digest(source, name, *seen, *headers, *[f for f in flags if str(ROOT) not in f], compiler.version())
    final = cache_dir() / "twins" / f"{Path(name).stem}-{key}{'.checked' if checked else ''}.so"
    if found(final):
        return final
    expect(final)
    with tempfile.TemporaryDirectory() as tmp:
        path, obj, out = Path(tmp) / name, Path(tmp) / "twin.o", Path(tmp) / "twin.so"
        path.write_text(source)
        _run([*compiler.command, *flags, *[f"-I{i}" for i in includes], "-c", str(path), "-o", str(obj)])
        # Linked without -fsanitize=thread: the hooks are ours (hooks.h).
        # A twin needs no C++ library, so zig links as C: it would first build libc++ for minutes.
        linker = [*compiler.command[:-1], "cc"] if compiler.clang else [*compiler.command]
        _run([*linker, *_link_flags(compiler), "-shared", str(obj), "-o", str(out), "-lm"])
        return publish(out, final)
