"""The files that a model lies in: one, or those that llama-gguf-split cut it into, opened by the first.

The first has all metadata. Each says which part of how many it is, and how many tensors all have together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.reading import BadTensor, HeaderReader
from llmc.compiler.sources.gguf.tensor import GgufTensor
from llmc.compiler.sources.model_config import one_line

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def open_parts(path: Path) -> tuple[HeaderReader, tuple[GgufTensor, ...]]:
    """The header with the metadata, and the tensors of all parts. Raises SourceError."""
    first = _open(path)
    stated = first.scalars()
    readers = {path: first}
    for file in _other_parts(path, stated):
        readers[file] = _open(file)
        _require_same_model(file, readers[file].scalars(), len(readers) - 1, path, stated)
    tensors: dict[str, GgufTensor] = {}
    for file, reader in readers.items():
        for found in reader.tensors:
            tensor = GgufTensor.of(file, found)
            if (other := tensors.setdefault(tensor.name, tensor)) is not tensor:
                raise SourceError(f"{file}: tensor {tensor.name} is in {other.file.name} already")
    if len(readers) > 1 and stated.get(_TENSORS, len(tensors)) != len(tensors):
        raise SourceError(f"{path}: its parts have {len(tensors)} tensors, {_TENSORS} says {stated[_TENSORS]}")
    return first, tuple(tensors.values())


def _open(path: Path) -> HeaderReader:
    try:
        reader = HeaderReader(path)
    except BadTensor as error:
        raise SourceError(f"{path}: {error}") from error
    except Exception as error:  # the reader indexes into a mapped file and fails however numpy does
        raise SourceError(f"{path}: truncated or not a GGUF file: {one_line(error)}") from error
    if reader.byte_order != "I":
        raise SourceError(f"{path}: of the other byte order; convert it (gguf-convert-endian)")
    return reader


def _other_parts(path: Path, stated: Mapping[str, Any]) -> list[Path]:
    """The files of the second part to the last."""
    count, number = stated.get(_COUNT, 1), stated.get(_NUMBER, 0)
    if count <= 1:
        return []
    found = _NAME.fullmatch(path.name)
    if found is None or (int(found[2]), int(found[3])) != (number + 1, count):
        name = f"NAME-{number + 1:05}-of-{count:05}.gguf"
        raise SourceError(
            f"{path}: part {number + 1} of {count}, expected the name {name}, which tells those of others"
        )
    files = [path.with_name(f"{found[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if number:
        raise SourceError(f"{path}: part {number + 1} of {count}; give the first, {files[0].name}")
    for i, file in enumerate(files, 1):
        if not file.is_file():
            raise SourceError(f"{file}: part {i} of {count} is missing")
    return files[1:]


def _require_same_model(
    file: Path, found: Mapping[str, Any], number: int, path: Path, stated: Mapping[str, Any]
) -> None:
    if found.get(_NUMBER) != number or found.get(_COUNT) != stated[_COUNT]:
        is_part = f"part {found.get(_NUMBER, 0) + 1} of {found.get(_COUNT, 1)}"
        raise SourceError(f"{file}: {is_part}, expected part {number + 1} of {stated[_COUNT]} of {path.name}")
    for key in found.keys() & stated.keys() - {_NUMBER}:
        if found[key] != stated[key] and not key.startswith("GGUF."):
            raise SourceError(f"{file}: {key} = {found[key]!r} but {stated[key]!r} in {path.name}: of another model")
