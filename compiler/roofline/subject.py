"""What `llmc inspect --roofline` predicts: a model lowered for a kind of target, or an engine as it was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmc.codegen.cpu.target import CpuTarget
from llmc.compiler.targets import Target
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph
from llmc.ir.parser import ParseError, parse_all
from llmc.runtime.artifact.artifact import is_engine, read_file, read_manifest
from llmc.runtime.artifact.manifest import CPU, CUDA

Entries = Mapping[str, Graph]
"""The kernel-level graphs `prefill` and `decode`."""


class PredictionError(Exception):
    """A prediction that cannot be made as asked; the message is one line for people."""


@dataclass(frozen=True)
class Lowering:
    """Entries that a prediction can be made of. `built_for`: the target of the engine that they are from, if any."""

    entries: Entries
    built_for: str | None = None


@dataclass(frozen=True)
class Subject:
    """`lowered`: what the kernels of a target would run; an engine has only what it was built with. `targets`: those to
    show where none is asked for, an engine's own."""

    name: str
    dtype: str
    max_seq_len: int
    lowered: Callable[[Target], Lowering]
    targets: tuple[str, ...] = ("h100", "h200", "a100")


def open_subject(path: str, scheme: Scheme | None) -> Subject:
    """An engine folder, a model folder (config.json is enough), a hub id or a .gguf file.

    `scheme`: of a model's weights, bf16 where None; an engine has its own. Raises EngineError, SourceError,
    CaptureError, IRError; PredictionError for a scheme that is not the engine's.
    """
    folder = Path(path).expanduser()
    if is_engine(folder):
        return _engine(folder, scheme)
    from llmc.compiler.roofline.model import model_subject

    return model_subject(path, scheme or Scheme.BF16)


def _engine(folder: Path, scheme: Scheme | None) -> Subject:
    manifest = read_manifest(folder)
    if scheme is not None and scheme.name != manifest.model.dtype:
        raise PredictionError(f"{folder} is an engine in {manifest.model.dtype}: --dtype {scheme.name} is for models")

    def lowered(target: Target) -> Lowering:
        """Of the engine's targets the one of that name, else one of its kind, else the first."""
        kind = CPU if isinstance(target, CpuTarget) else CUDA
        chosen = min(manifest.targets, key=lambda t: (t.name != target.name, t.kind != kind))
        text = read_file(folder, manifest, f"{chosen.plans}/graph.llmc").decode()
        return Lowering(read_entries(text), chosen.name)

    model, names = manifest.model, tuple(t.name for t in manifest.targets)
    return Subject(model.name, model.dtype, manifest.limits.max_seq_len, lowered, names)


def read_entries(text: str) -> Entries:
    """The graphs of a graph.llmc by name. PredictionError for those that another llmc has printed."""
    try:
        return {g.name: g for g in parse_all(text)}
    except ParseError as error:
        raise PredictionError(f"graph.llmc is not as this llmc writes it ({error}): build the engine anew") from error
