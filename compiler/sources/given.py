"""What a user typed where a model is wanted: a folder, a GGUF file, or an id of the hub."""

import re
from enum import Enum
from pathlib import Path

from llmc.compiler.sources.errors import SourceError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class Given(Enum):
    FOLDER = "folder"
    GGUF = "gguf"
    HUB_ID = "hub id"


def what_is(model: str) -> Given:
    """By the path alone, which is looked at before anything is imported that reads models. Raises SourceError."""
    path = Path(model).expanduser()
    if path.is_dir():
        return Given.FOLDER
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return Given.GGUF
        raise SourceError(f"{path}: neither a model folder nor a .gguf file")
    if looks_like_hub_id(model) and path.suffix.lower() not in (".gguf", ".safetensors", ".bin"):
        return Given.HUB_ID
    raise SourceError(
        f"{path}: no such file or folder; give a HuggingFace folder, a hub id (OWNER/NAME) or a .gguf file"
    )


def looks_like_hub_id(text: str) -> bool:
    return _HUB_ID.fullmatch(text) is not None
