"""Writes an engine folder: kernels, plans, weights, tokenizer, IR, report, and the manifest over all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.codegen.cpu.model import Model
from llmc.codegen.weights import PlacedWeight, SourceReader, write_weights
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.printer import print_graph
from llmc.runtime.artifact import MODEL_LIBRARY, WEIGHTS, is_engine, seal
from llmc.runtime.manifest import (
    ArenaBytes,
    GenerationDefaults,
    Limits,
    Manifest,
    MemoryPlan,
    ModelSummary,
    SpecialTokens,
    Target,
)
from llmc.runtime.staging import atomic_folder


@dataclass(frozen=True)
class Facts:
    """What the manifest says beside what the generated code knows of itself."""

    producer: Mapping[str, str]
    target: Target
    model: ModelSummary
    limits: Limits
    tokens: SpecialTokens
    generation: GenerationDefaults


@dataclass(frozen=True)
class Contents:
    """Everything that goes into the folder. `texts`: further files by name (tokenizer, template, report)."""

    facts: Facts
    model: Model
    weights: Sequence[PlacedWeight]
    entries: Sequence[Graph]
    texts: Mapping[str, str]


def write_engine(
    out: Path,
    contents: Contents,
    reader: SourceReader,
    compile_model: Callable[[Mapping[str, str], Path], None],
    progress: Callable[[int], None],
) -> Manifest:
    """Build the folder beside `out` and move it into place whole.

    `compile_model` turns sources into the library at a path; `progress` is told the weight bytes just written.
    Raises OutputOccupied when `out` exists and is no engine.
    """
    with atomic_folder(out, is_engine) as folder:
        sources = folder / "kernels" / "cpu" / "src"
        sources.mkdir(parents=True)
        for name, text in contents.model.sources.items():
            (sources / name).write_text(text)
        compile_model(contents.model.sources, folder / MODEL_LIBRARY)
        plans = folder / "plans"
        plans.mkdir()
        for name, plan in contents.model.plans.items():
            (plans / f"{name}.json").write_text(plan.to_json())
        (folder / "graph.llmc").write_text("\n".join(print_graph(g) for g in contents.entries))
        for name, text in contents.texts.items():
            (folder / name).write_text(text)
        write_weights(folder / WEIGHTS, contents.weights, reader, progress)
        return seal(folder, _manifest(contents))


def _manifest(contents: Contents) -> Manifest:
    facts, model = contents.facts, contents.model
    kv = model.kv.layout
    arena = ArenaBytes(0, model.arena_per_token, model.arena_per_row, 0)
    memory = MemoryPlan(sum(w.num_bytes for w in contents.weights), kv.bytes_per_token, arena)
    return Manifest(
        producer=facts.producer,
        target=facts.target,
        model=facts.model,
        limits=facts.limits,
        kv=kv,
        memory=memory,
        tokens=facts.tokens,
        generation=facts.generation,
        files={},
    )


def to_json(content: object) -> str:
    """Stable, indented JSON."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
