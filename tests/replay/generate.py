"""Builds everything that a replay compares, without compiling any of it:

    python -m tests.replay.generate OUT [--jobs N] [SUBJECT ...]

OUT/SUBJECT/DTYPE/ir holds the graph after every pass, .../engine the engine. Where an engine has compiled code, a
digest of what would be compiled, and how: comments and the hashes in kernels' names do not count. Where it has
weights, a digest of each. These digests are in capitals, unlike hashes that are part of a name.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import multiprocessing
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from transformers.utils import logging

from llmc.codegen.cpu.toolchain import CompileTarget, Kind, Toolchain
from llmc.codegen.cuda.target import nvrtc
from llmc.compiler import build as driver
from llmc.compiler.build import BuildOptions, build
from llmc.compiler.capture.capture import Captured, capture
from llmc.compiler.progress import Progress
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.shapes import open_shapes
from llmc.compiler.targets import cpu
from llmc.ir.formats import Scheme
from tests.replay.models import TARGETS, Subject, subjects

WEIGHTS = "weights.safetensors"
COMMENT = re.compile(r"//.*")
SYMBOL_HASH = re.compile(r"(?<=_)[0-9a-f]{8}\b")


def compile_nothing() -> None:
    """Puts digests of sources and options where compiled code would be."""
    patches: list[tuple[Any, str, Any]] = [
        (driver, "capture", _once(capture)),
        (driver, "open_source", cache(open_source)),
        (driver, "open_shapes", cache(open_shapes)),
        (cpu, "compile_library", _library),
        (cpu, "find_toolchain", lambda: Toolchain(Kind.ZIG, "of a replay", ())),
        (nvrtc, "compile_each", _cubins),
    ]
    for module, name, replacement in patches:
        assert hasattr(module, name), f"{module.__name__} has no {name} to replace: {__file__} is behind"
        setattr(module, name, replacement)


def _once(capture: Callable[[ModelSource], Captured]) -> Callable[[ModelSource], Captured]:
    """A source is captured once for all dtypes."""
    found: dict[int, Captured] = {}
    return lambda source: found.get(id(source)) or found.setdefault(id(source), capture(source))


def _library(sources: Mapping[str, str], target: CompileTarget, out: Path, toolchain: Toolchain) -> None:
    options = (target.triple, target.mcpu, target.flags, target.macros)
    out.write_text(f"{_code_digest(sources)} {options}\n")


def _cubins(sources: Mapping[str, str], arch: str, progress: Callable[[int], None]) -> dict[str, bytes]:
    headers = nvrtc.headers()
    return {
        symbol: f"{_code_digest({**headers, 'kernel.cu': text})} {nvrtc.options(arch)}\n".encode()
        for symbol, text in sources.items()
    }


def _code_digest(sources: Mapping[str, str]) -> str:
    lines = (line for name in sorted(sources) for line in [name, *sources[name].splitlines()])
    code = (SYMBOL_HASH.sub("", COMMENT.sub("", line)).rstrip() for line in lines)
    return _digest("\n".join(line for line in code if line).encode())


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest().upper()


def generate(subject: Subject, out: Path) -> str | None:
    """Everything of one model; what went wrong, if anything."""
    logging.disable_progress_bar()
    compile_nothing()
    with tempfile.TemporaryDirectory() as made:
        model = str(subject.path(Path(made)))
        for dtype, targets in TARGETS.items():
            folder = out / str(subject) / dtype
            options = BuildOptions(
                model,
                folder / "engine",
                target=",".join(targets),
                scheme=Scheme.named(dtype),
                dump_ir=folder / "ir",
                hollow=subject.hollow,
                certify=0,  # nothing that runs is compiled
            )
            try:
                build(options, Progress())
            except Exception:
                shutil.rmtree(folder, ignore_errors=True)
                return f"{subject} in {dtype}: {traceback.format_exc()}"
            if (weights := folder / "engine" / WEIGHTS).exists():
                (folder / "engine" / "weights.txt").write_text(_weights(weights))
                weights.unlink()
    return None


def _weights(path: Path) -> str:
    """A line for each weight: its name, its place, a digest of its bytes."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 8 + int.from_bytes(data[:8], "little")
        lines = []
        for name, tensor in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                with memoryview(data)[start + begin : start + end] as part:
                    lines.append(f"{name} {begin} {end} {_digest(part)}\n")
    return "".join(lines)


@click.command(help=__doc__)
@click.argument("out", type=Path)
@click.argument("names", nargs=-1)
@click.option("--jobs", default=1)
def main(out: Path, names: Sequence[str], jobs: int) -> None:
    chosen = [s for s in subjects() if not names or str(s) in names]
    out.mkdir(parents=True)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        failed = [error for error in pool.map(partial(generate, out=out), chosen) if error is not None]
    print("\n".join(failed), file=sys.stderr, end="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
