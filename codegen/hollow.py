"""Engines without their weights: all else of an engine, a few MB, made from a config alone, and filled elsewhere.

What each weight is made of stands in the engine's graphs (plans/<target>/graph.llmc), so a hollow engine needs beside
its files the manifest and the values that the module computes itself (rotary frequencies), which no graph holds:

    hollow.json            the manifest, of no files yet
    buffers.safetensors    those values, by name

Such a folder has no manifest.json: the runtime says that it is no engine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from llmc.codegen.engine_weights import placed_in
from llmc.codegen.package import Contents, manifest_of, write_files
from llmc.codegen.random_weights import RandomWeights
from llmc.codegen.weights import Array, PlacedWeight, write_pieces
from llmc.runtime.artifact.artifact import WEIGHTS, is_engine, seal
from llmc.runtime.artifact.atomic_folder import atomic_folder
from llmc.runtime.artifact.manifest import Manifest
from llmc.runtime.artifact.strict_json import JsonMismatch, from_plain, parse_json, render_json, to_plain
from llmc.runtime.errors import ManifestInvalid

MANIFEST, BUFFERS = "hollow.json", "buffers.safetensors"


def is_hollow(folder: Path) -> bool:
    """Whether a hollow engine lies at a path."""
    return (folder / MANIFEST).is_file() and (folder / BUFFERS).is_file()


def write_hollow(out: Path, contents: Contents, buffers: Mapping[str, Array]) -> Manifest:
    """All of `contents` but its weights' bytes. Raises OutputOccupied when `out` exists and is no hollow engine."""
    manifest = manifest_of(contents)
    with atomic_folder(out, is_hollow) as folder:
        write_files(folder, contents)
        save_file({name: np.ascontiguousarray(values) for name, values in buffers.items()}, folder / BUFFERS)
        (folder / MANIFEST).write_bytes(render_json(to_plain(manifest)))
    return manifest


def fill(
    hollow: Path, out: Path, workers: int = 1, progress: Callable[[int, int], None] = lambda done, total: None
) -> Manifest:
    """The whole engine at `out`, with random weights (random_weights.py): the same ones every time.

    `progress` is told how many bytes of how many are written. Raises ManifestInvalid for a folder that is no hollow
    engine of this version, OutputOccupied when `out` exists and is no engine, DiskFull.
    """
    manifest, placed = _open(hollow)
    weights = RandomWeights(_buffers(hollow / BUFFERS))
    total, done = sum(w.num_bytes for w in placed), 0

    def written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    with atomic_folder(out, is_engine, total) as folder:
        shutil.copytree(hollow, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, BUFFERS))
        write_pieces(folder / WEIGHTS, placed, weights.pieces, written, workers)
        return seal(folder, manifest)


def _buffers(path: Path) -> Mapping[str, Array]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ManifestInvalid(f"{path}: {error}: prepare it again") from error


def _open(hollow: Path) -> tuple[Manifest, list[PlacedWeight]]:
    path = hollow / MANIFEST
    if not is_hollow(hollow):
        raise ManifestInvalid(f"{hollow}: no {MANIFEST} and {BUFFERS}: not an engine without weights")
    try:
        manifest = from_plain(Manifest, parse_json(path.read_bytes()))
    except JsonMismatch as error:
        raise ManifestInvalid(f"{path}: {error}") from error
    return replace(manifest, files={}), list(placed_in(hollow, manifest))
