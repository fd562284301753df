"""From what a user typed to a model source."""

from pathlib import Path

from llmc.compiler.sources.gguf.file import open_gguf
from llmc.compiler.sources.given import Given, what_is
from llmc.compiler.sources.hf_folder import open_folder
from llmc.compiler.sources.hub import fetch
from llmc.compiler.sources.model_source import ModelSource


def open_source(model: str) -> ModelSource:
    """The model at a path (an HF folder or a .gguf file) or, where no such path exists, under a hub id.

    Raises SourceError, one line, for whatever cannot be read or is not supported.
    """
    path = Path(model).expanduser()
    match what_is(model):
        case Given.FOLDER:
            return open_folder(path)
        case Given.GGUF:
            return open_gguf(path)
        case Given.HUB_ID:
            return open_folder(fetch(model), name=model)
