"""Opens what is to be predicted: an engine folder, or a model."""

from __future__ import annotations

from pathlib import Path

from llmc.compiler.progress import Progress
from llmc.compiler.roofline.lowering import Lowering, read_entries
from llmc.compiler.roofline.subject import PredictionError, Subject
from llmc.compiler.targets.backend import Backend
from llmc.ir.formats import Scheme
from llmc.ir.parser import ParseError
from llmc.runtime.artifact.artifact import is_engine, read_file, read_manifest


def open_subject(path: str, scheme: Scheme | None, progress: Progress | None = None) -> Subject:
    """An engine folder, a model folder (config.json is enough), a hub id or a .gguf file.

    `scheme`: of a model's weights, bf16 where None; an engine has its own. `progress` is told of a model's stages,
    those of its lowering too. Raises EngineError, SourceError, CaptureError, IRError; PredictionError for a scheme
    that is not the engine's.
    """
    folder = Path(path).expanduser()
    if is_engine(folder):
        return _engine(folder, scheme)
    progress = progress or Progress()
    progress.stage("loading torch and transformers")
    from llmc.compiler.roofline.model import model_subject

    return model_subject(path, scheme or Scheme.BF16, progress)


def _engine(folder: Path, scheme: Scheme | None) -> Subject:
    manifest = read_manifest(folder)
    if scheme is not None and scheme.name != manifest.model.dtype:
        raise PredictionError(f"{folder} is an engine in {manifest.model.dtype}: --dtype {scheme.name} is for models")

    def lowered(target: Backend) -> Lowering:
        """Of the engine's targets the one of that name, else one of its kind, else the first."""
        chosen = min(manifest.targets, key=lambda t: (t.name != target.name, t.kind != target.kind))
        name = f"{chosen.plans}/graph.llmc"
        try:
            return Lowering(read_entries(read_file(folder, manifest, name).decode()), chosen.name)
        except ParseError as error:
            raise PredictionError(
                f"{folder / name} is not as this llmc writes graphs ({error}): build the engine anew"
            ) from error

    model, names = manifest.model, tuple(t.name for t in manifest.targets)
    return Subject(model.name, model.dtype, manifest.limits.max_seq_len, lowered, names)
