"""Writes an engine folder: each target's kernels and plans, weights, tokenizer, report, and the manifest over all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.codegen.cpu.model import Model
from llmc.codegen.weights import PlacedWeight, SourceReader, write_weights
from llmc.ir.graph import Graph
from llmc.ir.printer import print_graph
from llmc.runtime.artifact.artifact import WEIGHTS, is_engine, seal
from llmc.runtime.artifact.atomic_folder import atomic_folder, fsync_tree
from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.manifest import (
    CPU,
    CUDA,
    ArenaBytes,
    GenerationDefaults,
    Limits,
    Manifest,
    ModelSummary,
    SpecialTokens,
    TargetEntry,
    TargetMemory,
)

CUDA_SOURCES = "kernels/cuda/src"


@dataclass(frozen=True)
class Facts:
    """What the manifest says of the model, whatever the target."""

    producer: Mapping[str, str]
    model: ModelSummary
    limits: Limits
    tokens: SpecialTokens
    generation: GenerationDefaults


@dataclass(frozen=True)
class TargetPart:
    """One target's share of an engine. `plans`: JSON by entry; `entries`: its final graphs.

    `write_kernels` puts kernels and their sources below the engine's folder; parts may write the same files, if with
    the same bytes.
    """

    entry: TargetEntry
    plans: Mapping[str, str]
    entries: Sequence[Graph]
    write_kernels: Callable[[Path], None]


@dataclass(frozen=True)
class Contents:
    """Everything that goes into the folder. `texts`: further files by name (tokenizer, template, report)."""

    facts: Facts
    parts: Sequence[TargetPart]
    weights: Sequence[PlacedWeight]
    texts: Mapping[str, str]


def write_engine(
    out: Path,
    contents: Contents,
    reader: SourceReader,
    progress: Callable[[int], None],
    finish: Callable[[Path, Manifest], None] = lambda folder, manifest: None,
) -> Manifest:
    """Build the folder beside `out` and move it into place whole.

    `progress` is told the weight bytes just written. `finish` has the finished engine before it is in place: what it
    writes there is part of the folder and not of the manifest, and if it raises there is no engine. Raises
    OutputOccupied when `out` exists and is no engine, DiskFull before anything is compiled where the weights do not
    fit.
    """
    with atomic_folder(out, is_engine, known_bytes(contents)) as folder:
        write_files(folder, contents)
        write_weights(folder / WEIGHTS, contents.weights, reader, progress)
        manifest = seal(folder, manifest_of(contents))
        finish(folder, manifest)
        fsync_tree(folder)
        return manifest


def known_bytes(contents: Contents) -> int:
    """Bytes of the engine that are known before its kernels are compiled: nearly all."""
    texts = [*contents.texts.values(), *(text for part in contents.parts for text in part.plans.values())]
    return sum(w.num_bytes for w in contents.weights) + sum(len(text.encode()) for text in texts)


def write_files(folder: Path, contents: Contents) -> None:
    """Everything but weights and manifest: kernels, plans, graphs, texts."""
    for part in contents.parts:
        part.write_kernels(folder)
        plans = folder / part.entry.plans
        plans.mkdir(parents=True)
        for name, text in part.plans.items():
            (plans / f"{name}.json").write_text(text)
        (plans / "graph.llmc").write_text("\n".join(print_graph(g) for g in part.entries))
    for name, text in contents.texts.items():
        (folder / name).write_text(text)


def cpu_part(
    name: str,
    arch: str,
    features: tuple[str, ...],
    model: Model,
    max_seq_len: int,
    weights: Sequence[PlacedWeight],
    entries: Sequence[Graph],
    compile_model: Callable[[Mapping[str, str], Path], None],
) -> TargetPart:
    """The share of a CPU target, for sequences up to `max_seq_len`.

    `compile_model` turns sources into the library at a path.
    """
    kv = model.kv.layout
    planned = model.arena
    arena = ArenaBytes(planned.constant, planned.per_token, planned.per_row, planned.per_thread(max_seq_len))
    memory = TargetMemory(sum(w.num_bytes for w in weights), kv.bytes_per_token, arena)
    entry = TargetEntry(CPU, name, arch, features, f"kernels/{name}", f"plans/{name}", kv, memory)

    def write_kernels(folder: Path) -> None:
        sources = folder / entry.kernels / "src"
        sources.mkdir(parents=True)
        for file, text in model.sources.items():
            (sources / file).write_text(text)
        compile_model(model.sources, folder / entry.library)

    plans = {entry_name: plan.to_json() for entry_name, plan in model.plans.items()}
    return TargetPart(entry, plans, entries, write_kernels)


def cubin_file(arch: str, symbol: str) -> str:
    """Where an engine has a kernel for a GPU architecture; what a plan's `kernels` map to."""
    return f"kernels/{arch}/{symbol}.cubin"


def cuda_part(
    name: str,
    arch: str,
    features: tuple[str, ...],
    kv: KvLayout,
    arena: ArenaBytes,
    weights: Sequence[PlacedWeight],
    plans: Mapping[str, str],
    entries: Sequence[Graph],
    sources: Mapping[str, str],
    headers: Mapping[str, str],
    compile_kernels: Callable[[Mapping[str, str]], Mapping[str, bytes]],
) -> TargetPart:
    """The share of a CUDA target. `sources`: CUDA C++ of each kernel by symbol; `headers`: what they include, by name.

    `compile_kernels` turns sources into cubins by symbol. Targets of one architecture share cubins, all share sources.
    """
    memory = TargetMemory(sum(w.num_bytes for w in weights), kv.bytes_per_token, arena)
    entry = TargetEntry(CUDA, name, arch, features, f"kernels/{arch}", f"plans/{name}", kv, memory)

    def write_kernels(folder: Path) -> None:
        for file, text in {**headers, **{f"{symbol}.cu": text for symbol, text in sources.items()}}.items():
            _write_once(folder / CUDA_SOURCES / file, text.encode())
        for symbol, cubin in compile_kernels(sources).items():
            _write_once(folder / cubin_file(arch, symbol), cubin)

    return TargetPart(entry, plans, entries, write_kernels)


def _write_once(path: Path, data: bytes) -> None:
    """Several targets may have the same file; it has the same bytes then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        assert path.read_bytes() == data, f"two targets differ in {path.name}"
        return
    path.write_bytes(data)


def manifest_of(contents: Contents) -> Manifest:
    """Of no files yet."""
    facts = contents.facts
    return Manifest(
        producer=facts.producer,
        targets=tuple(part.entry for part in contents.parts),
        model=facts.model,
        limits=facts.limits,
        tokens=facts.tokens,
        generation=facts.generation,
        files={},
    )


def to_json(content: object) -> str:
    """Stable, indented JSON."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
