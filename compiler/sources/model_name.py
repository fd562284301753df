"""What a model is called where people read it: by its file or folder, which they chose or know from the hub.

What stands in a GGUF's metadata (general.name) is often made of the name of a training run, and comes second.
"""

import re
from pathlib import Path

# As llama.cpp's tools name files: ...-Q4_K_M, .Q4_1, -F16, and -00001-of-00003 of a split file.
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_ENCODING = re.compile(r"[-._](?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?)$", re.IGNORECASE)
_SNAPSHOT = re.compile(r"models--(.+)")
_NO_NAMES = {"", "model", "ggml-model", "gguf", "weights", "pytorch_model", "consolidated"}


def gguf_stem(path: Path) -> str:
    """Of a GGUF file, or of all the parts whose first it is: without the suffix."""
    return _SPLIT.sub("", path.stem)


def gguf_title(path: Path, general_name: object) -> str:
    """Of a GGUF file: its name without what says how its weights are stored; else general.name; else its folder's."""
    stem = _ENCODING.sub("", gguf_stem(path))
    if stem.lower() not in _NO_NAMES:
        return stem
    if isinstance(general_name, str) and general_name.strip():
        return general_name.strip()
    return path.resolve().parent.name or path.stem


def folder_title(folder: Path) -> str:
    """Of a model's folder: OWNER/NAME of a snapshot in the hub's cache, else its name, or that of one above it."""
    whole = folder.resolve()
    if whole.parent.name == "snapshots" and (found := _SNAPSHOT.fullmatch(whole.parent.parent.name)):
        return found[1].replace("--", "/", 1)
    named = (part.name for part in (whole, *whole.parents) if part.name.lower() not in _NO_NAMES)
    return next(named, whole.name)
