"""Writes an engine folder: each target's kernels and plans, weights, tokenizer, report, and the manifest over all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.codegen.cpu.model import BLOCK_TOKENS, Model
from llmc.codegen.weights import PlacedWeight, SourceReader, write_weights
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.printer import print_graph
from llmc.runtime.artifact import WEIGHTS, is_engine, seal
from llmc.runtime.manifest import (
    CPU,
    ArenaBytes,
    GenerationDefaults,
    KvLayout,
    KvSlot,
    Limits,
    Manifest,
    MemoryPlan,
    ModelSummary,
    SpecialTokens,
    TargetEntry,
)
from llmc.runtime.staging import atomic_folder

CPU_KERNELS = "kernels/cpu"


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


def write_engine(out: Path, contents: Contents, reader: SourceReader, progress: Callable[[int], None]) -> Manifest:
    """Build the folder beside `out` and move it into place whole.

    `progress` is told the weight bytes just written. Raises OutputOccupied when `out` exists and is no engine.
    """
    with atomic_folder(out, is_engine) as folder:
        for part in contents.parts:
            part.write_kernels(folder)
            plans = folder / part.entry.plans
            plans.mkdir(parents=True)
            for name, text in part.plans.items():
                (plans / f"{name}.json").write_text(text)
            (plans / "graph.llmc").write_text("\n".join(print_graph(g) for g in part.entries))
        for name, text in contents.texts.items():
            (folder / name).write_text(text)
        write_weights(folder / WEIGHTS, contents.weights, reader, progress)
        return seal(folder, _manifest(contents))


def cpu_part(
    name: str,
    arch: str,
    features: tuple[str, ...],
    model: Model,
    weights: Sequence[PlacedWeight],
    entries: Sequence[Graph],
    compile_model: Callable[[Mapping[str, str], Path], None],
) -> TargetPart:
    """The share of a CPU target. `compile_model` turns sources into the library at a path."""
    slots = tuple(KvSlot(s.layer, s.kv_heads, s.head_dim, s.value_dim, s.dtype.value, s.window) for s in model.kv_slots)
    kv = KvLayout(BLOCK_TOKENS, model.kv_block_bytes, model.kv_block_bytes // BLOCK_TOKENS, slots)
    arena = ArenaBytes(0, model.arena_per_token, model.arena_per_row, 0)
    memory = MemoryPlan(sum(w.num_bytes for w in weights), kv.bytes_per_token, arena)
    entry = TargetEntry(CPU, name, arch, features, CPU_KERNELS, f"plans/{name}", kv, memory)

    def write_kernels(folder: Path) -> None:
        sources = folder / CPU_KERNELS / "src"
        sources.mkdir(parents=True)
        for file, text in model.sources.items():
            (sources / file).write_text(text)
        compile_model(model.sources, folder / entry.library)

    plans = {entry_name: plan.to_json() for entry_name, plan in model.plans.items()}
    return TargetPart(entry, plans, entries, write_kernels)


def _manifest(contents: Contents) -> Manifest:
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
