"""The door for a model folder as transformers saves it."""

import re
from pathlib import Path

from llmc.compiler.sources.generation import read_generation
from llmc.compiler.sources.model_config import read_config
from llmc.compiler.sources.model_name import folder_title
from llmc.compiler.sources.model_source import ModelSource, SourceFormat
from llmc.compiler.sources.quantised.methods import reader_of
from llmc.compiler.sources.quantised.read import read_quantised
from llmc.compiler.sources.safetensors_checkpoint import open_safetensors
from llmc.compiler.sources.tokenizer import read_tokenizer


def open_folder(folder: Path, name: str | None = None) -> ModelSource:
    """Read everything of an HF folder but the weights' data. Raises SourceError."""
    config, config_file = read_config(folder)
    stated = config_file.quantisation
    reader = None if stated is None else reader_of(stated)  # refused before tensors are looked at
    checkpoint = open_safetensors(folder)
    quantised = None if stated is None or reader is None else read_quantised(checkpoint, reader, stated)
    return ModelSource(
        name=name or folder_title(folder),
        path=folder,
        format=SourceFormat.HF_FOLDER,
        config=config,
        config_file=config_file,
        generation=read_generation(folder, config, config_file.raw),
        tokenizer=read_tokenizer(folder),
        quantization=None if quantised is None else quantised.stored_as,
        licence=_licence(folder),
        num_tensors=len(checkpoint),
        checkpoint=lambda model: checkpoint if quantised is None else quantised.of(model),
        notices=() if quantised is None else quantised.notices,
    )


def _licence(folder: Path) -> str | None:
    """The `license` field of the model card's front matter."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    front = re.match(r"---\n(.*?)\n---", card.read_text("utf-8", errors="replace"), re.DOTALL)
    stated = re.search(r"^license:\s*(\S+)\s*$", front[1], re.MULTILINE) if front else None
    return stated[1].strip("'\"") if stated else None
