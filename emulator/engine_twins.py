"""Twins of every kernel of an engine folder: compiled from the CUDA sources that lie in it, cached by content.

Of a cubin `kernels/<arch>/<stem>.cubin` the source is `kernels/cuda/src/<stem>.cu`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from llmc.emulator.build import BuildError, build_twin
from llmc.emulator.cache import cache_dir, found
from llmc.emulator.pairs import cubin_hash

SOURCES = "kernels/cuda/src"


@dataclass(frozen=True)
class Pair:
    """A cubin of the engine and the source that it was made of."""

    cubin: Path
    source: Path


def find_pairs(engine: Path, arch: str) -> list[Pair]:
    """All kernels for an architecture (sm_90a). Raises BuildError for a cubin whose source is missing."""
    cubins = sorted((engine / "kernels" / arch).glob("*.cubin"))
    if not cubins:
        raise BuildError(f"{engine}: no cubins for {arch}, so nothing to emulate")
    pairs = [Pair(cubin, engine / SOURCES / f"{cubin.stem}.cu") for cubin in cubins]
    for pair in pairs:
        if not pair.source.is_file():
            raise BuildError(f"{pair.cubin}: its source {pair.source} is missing; build the engine again")
    return pairs


def install_twins(
    engine: Path, archs: Sequence[str], checked: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """The folder in which the driver finds the twin of every cubin for these architectures. Raises BuildError.

    `progress` is told how many of how many twins are ready.
    """
    pairs = [pair for arch in archs for pair in find_pairs(engine, arch)]
    cubins = {pair: pair.cubin.read_bytes() for pair in pairs}
    hashes = {pair: _hash(pair.cubin, image) for pair, image in cubins.items()}
    sources = sorted({pair.source for pair in pairs})
    done = 0

    def compile_one(source: Path) -> Path:
        nonlocal done
        twin = build_twin(_text(source), [source.parent], checked=checked, name=source.name)
        done += 1
        progress(done, len(sources))
        return twin

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        twins = dict(zip(sources, pool.map(compile_one, sources), strict=True))
    content = hashlib.sha256()
    for pair in pairs:
        content.update(hashlib.sha256(cubins[pair]).digest() + twins[pair.source].name.encode())
    folder = cache_dir() / "engines" / content.hexdigest()[:24]
    links = {f"{hashes[pair]:016x}{'.checked' if checked else ''}.so": twins[pair.source] for pair in pairs}
    if not (found(folder) and _holds(folder, links)):
        _link(folder, links)
    return folder


def _text(source: Path) -> str:
    try:
        return source.read_text()
    except UnicodeDecodeError as error:
        raise BuildError(f"{source}: not a text ({error}); build the engine again") from error


def _hash(cubin: Path, image: bytes) -> int:
    try:
        return cubin_hash(image)
    except ValueError as error:
        raise BuildError(f"{cubin}: {error}; build the engine again") from error


def _holds(folder: Path, links: Mapping[str, Path]) -> bool:
    return all((folder / name).exists() and (folder / name).samefile(twin) for name, twin in links.items())


def _link(folder: Path, links: Mapping[str, Path]) -> None:
    """Made whole under another name first: a folder that is there is complete, unless someone took of it."""
    making = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    making.mkdir(parents=True, exist_ok=True)
    for name, twin in links.items():
        (making / name).unlink(missing_ok=True)
        (making / name).symlink_to(os.path.relpath(twin, folder))  # the cache may move
    if folder.is_dir() and not _holds(folder, links):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        making.rename(folder)
    except OSError:  # another process was first
        if not folder.is_dir():
            raise
