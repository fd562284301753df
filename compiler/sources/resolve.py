"""From what a user typed to a model source."""

from pathlib import Path

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.file import open_gguf
from llmc.compiler.sources.hf_folder import open_folder
from llmc.compiler.sources.hub import fetch, looks_like_hub_id
from llmc.compiler.sources.model_source import ModelSource


def open_source(model: str) -> ModelSource:
    """The model at a path (an HF folder or a .gguf file) or, where no such path exists, under a hub id.

    Raises SourceError, one line, for whatever cannot be read or is not supported.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return open_folder(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return open_gguf(path)
        raise SourceError(f"{path}: neither a model folder nor a .gguf file")
    if looks_like_hub_id(model) and path.suffix.lower() not in (".gguf", ".safetensors", ".bin"):
        return open_folder(fetch(model), name=model)
    raise SourceError(
        f"{path}: no such file or folder; give a HuggingFace folder, a hub id (OWNER/NAME) or a .gguf file"
    )
