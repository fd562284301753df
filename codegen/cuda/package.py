"""A CUDA target's part of an engine: cubins, their sources for people and for the emulator, plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from llmc.codegen.cuda.gpus import Gpu
from llmc.codegen.cuda.model import CudaModel, kernel_folder
from llmc.codegen.cuda.nvrtc import compile_into, headers
from llmc.codegen.package import TargetPart
from llmc.codegen.weights import PlacedWeight
from llmc.compiler.ir.graph import Graph
from llmc.runtime.manifest import CUDA, ArenaBytes, MemoryPlan, TargetEntry
from llmc.runtime.strict_json import render_json, to_plain

SOURCES = "kernels/cuda/src"


def cuda_part(
    target: Gpu,
    model: CudaModel,
    weights: Sequence[PlacedWeight],
    entries: Sequence[Graph],
    stage: Callable[[], None],
) -> TargetPart:
    """The share of a GPU. `stage` is called before kernels are compiled. Those of several targets share
    `SOURCES`, and those of one architecture its folder: a symbol names its content."""
    kv = model.kv.layout
    arena = ArenaBytes(0, model.arena_per_token, model.arena_per_row, 0)
    memory = MemoryPlan(sum(w.num_bytes for w in weights), kv.bytes_per_token, arena)
    features = tuple(sorted(target.features))
    kernels = kernel_folder(target)
    entry = TargetEntry(CUDA, target.name, target.arch, features, kernels, f"plans/{target.name}", kv, memory)

    def write_kernels(folder: Path) -> None:
        stage()
        sources = folder / SOURCES
        sources.mkdir(parents=True, exist_ok=True)
        for name, text in headers().items():
            (sources / name).write_text(text)
        jobs = [(f"{symbol}.cu", text, target.arch) for symbol, text in sorted(model.kernels.sources.items())]
        for name, text, _ in jobs:
            (sources / name).write_text(text)
        compile_into(folder / kernels, jobs)

    plans = {name: render_json(to_plain(plan)).decode() for name, plan in model.plans.items()}
    return TargetPart(entry, plans, entries, write_kernels)
