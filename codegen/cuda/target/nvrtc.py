"""CUDA C++ to cubin through NVRTC, from its PyPI wheel: no nvcc, no driver, no GPU.

NVRTC 13.0 is pinned because a cubin carries the compatibility data of the toolkit that made it: cubins
of 13.0
load on drivers of the R580 series and newer, those of a later toolkit may ask for a later driver.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NVRTC_VERSION = (13, 0)
MIN_DRIVER = "580.65"  # first driver of CUDA 13.0 (CUDA Toolkit release notes, table 3)
TEMPLATES = Path(__file__).resolve().parents[3] / "templates" / "cuda"

_log = logging.getLogger(__name__)


class CompileError(RuntimeError):
    """NVRTC refused a source; `log` is its own message, with the template's file and line."""

    def __init__(self, name: str, arch: str, log: str) -> None:
        super().__init__(f"{name} for {arch}:\n{log}")
        self.log = log


@dataclass(frozen=True)
class Compiled:
    """`cubin` is an ELF image for `arch`; `ptx` the assembly it came from; `log` warnings."""

    arch: str
    cubin: bytes
    ptx: str
    log: str


def _check(result: tuple[object, ...]) -> object:
    from cuda.bindings import nvrtc

    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {result[0]}")
    return result[1] if len(result) > 1 else None


@cache
def version() -> tuple[int, int]:
    """NVRTC's version; RuntimeError when it is not the pinned one."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    if (major, minor) != NVRTC_VERSION:
        raise RuntimeError(
            f"NVRTC {major}.{minor} found, {NVRTC_VERSION[0]}.{NVRTC_VERSION[1]} expected: install llmc[cuda]"
        )
    return major, minor


def headers(folder: Path = TEMPLATES) -> dict[str, str]:
    """The .cuh files a kernel may include, by name. NVRTC gets their text: no path enters a cubin."""
    return {p.name: p.read_text() for p in sorted(folder.glob("*.cuh"))}


def options(arch: str) -> list[str]:
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--no-source-include",
        "--extra-device-vectorization",
        "--fmad=false",  # kernels write fmaf where they mean it: GPU and twin compute the same
    ]


def compile_cubin(
    source: str,
    arch: str,
    *,
    name: str = "kernel.cu",
    extra: Sequence[str] = (),
    files: dict[str, str] | None = None,
) -> Compiled:
    """Compiles one translation unit; `files` are the headers it may include (default: the templates').
    Raises CompileError with the compiler's messages."""
    from cuda.bindings import nvrtc

    version()
    files = headers() if files is None else files
    program = _check(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            name.encode(),
            len(files),
            [text.encode() for text in files.values()],
            [n.encode() for n in files],
        )
    )
    try:
        opts = [o.encode() for o in (*options(arch), *extra)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(opts), opts)
        log = bytearray(int(str(_check(nvrtc.nvrtcGetProgramLogSize(program)))))
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0 \n").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(name, arch, text)
        cubin = bytearray(int(str(_check(nvrtc.nvrtcGetCUBINSize(program)))))
        _check(nvrtc.nvrtcGetCUBIN(program, cubin))
        ptx = bytearray(int(str(_check(nvrtc.nvrtcGetPTXSize(program)))))
        _check(nvrtc.nvrtcGetPTX(program, ptx))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(arch, bytes(cubin), ptx.rstrip(b"\0").decode(), text)


def cubin_key(source: str, arch: str, name: str) -> str:
    """Content key of a compilation: source, every header, options and NVRTC's version."""
    h = hashlib.sha256()
    for part in (source, name, *headers().values(), *options(arch), repr(NVRTC_VERSION)):
        h.update(len(part).to_bytes(8, "little") + part.encode())
    return h.hexdigest()[:24]


def cached_cubin(source: str, arch: str, cache: Path, *, name: str = "kernel.cu") -> Path:
    """The compiled cubin's path below `cache`; compiles when it is not there yet. Files appear whole or
    not at all."""
    final = cache / f"{re.sub(r'[^A-Za-z0-9_.]', '_', name)}-{arch}-{cubin_key(source, arch, name)}.cubin"
    if not final.exists():
        compiled = compile_cubin(source, arch, name=name)
        cache.mkdir(parents=True, exist_ok=True)
        temporary = final.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(compiled.cubin)
        os.replace(temporary, final)
    return final


def compile_all(jobs: Sequence[tuple[str, str, str]], cache: Path, workers: int | None = None) -> list[Path]:
    """Compiles (name, source, arch) jobs in parallel; results in the jobs' order."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda job: cached_cubin(job[1], job[2], cache, name=job[0]), jobs))


def compile_each(
    sources: Mapping[str, str], arch: str, progress: Callable[[int], None] = lambda done: None
) -> dict[str, bytes]:
    """Cubins by symbol, of sources by symbol, compiled in parallel. Raises CompileError; logs what the compilers say of
    kernels they take (ptxas of wgmma that it had to serialize: right, and slow). `progress` is told how many are
    done, one by one."""

    def one(symbol: str) -> bytes:
        compiled = compile_cubin(sources[symbol], arch, name=f"{symbol}.cu")
        if compiled.log:
            _log.warning("%s for %s: %s", symbol, arch, compiled.log)
        return compiled.cubin

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(one, symbol) for symbol in sources]
        for done, _ in enumerate(as_completed(running), start=1):
            progress(done)
        return {symbol: compiled.result() for symbol, compiled in zip(sources, running, strict=True)}
