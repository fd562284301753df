"""safetensors files, single or sharded, as a checkpoint of mapped tensors."""

from pathlib import Path, PurePosixPath
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from llmc.compiler.sources.checkpoint import Checkpoint, Rows, StoredDtype, StoredTensor, checkpoint_of
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Of floats that numpy has not: bit patterns stand for them.
_BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
_BITS |= {torch.float8_e8m0fnu: torch.uint8}
_PICKLES = (
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "consolidated*.pth",
)


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The folder's safetensors files in transformers' order of preference; SourceError without one."""
    if (folder / _SINGLE).is_file():
        return (folder / _SINGLE,)
    if (folder / _INDEX).is_file():
        return tuple(folder / name for name in sorted(set(_weight_map(folder).values())))
    for pattern in _PICKLES:
        for pickle in sorted(folder.glob(pattern)):
            raise SourceError(f"{pickle}: pickle checkpoints can run code and are not read, convert it to safetensors")
    raise SourceError(f"{folder}: no weights: expected {_SINGLE} or {_INDEX}")


def open_safetensors(folder: Path) -> Checkpoint:
    """All tensors of the folder's checkpoint: headers are checked, data is not read. Raises SourceError."""
    files = checkpoint_files(folder)
    for path in files:
        if not path.is_file():
            raise SourceError(f"{path}: missing shard, named by {folder / _INDEX}")
    metadata: dict[str, str] = {}
    checkpoint = checkpoint_of([tensor for path in files for tensor in _open_file(path, metadata)], metadata)
    if files != (folder / _SINGLE,):
        _check_index(folder, checkpoint)
    return checkpoint


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / _INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{index}: no weight_map")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise SourceError(f"{index}: weight_map[{tensor!r}] is not a file name")
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts or "\\" in shard or "\0" in shard:
            raise SourceError(f"{index}: shard {shard!r} of {tensor} leaves the model's folder")
        if path.suffix != ".safetensors":
            raise SourceError(f"{index}: shard {shard!r} of {tensor} is not a safetensors file")
    return weight_map


def _check_index(folder: Path, checkpoint: Checkpoint) -> None:
    for name, shard in _weight_map(folder).items():
        if name not in checkpoint:
            raise SourceError(f"{folder / shard}: no tensor {name}, which {_INDEX} says is there")


def _open_file(path: Path, metadata: dict[str, str]) -> list[StoredTensor]:
    """Its tensors; what its header says beside them is added to `metadata`."""
    try:
        # The torch flavour, because it maps the file: reads are views of it, and bf16 exists.
        handle = safe_open(str(path), framework="pt")
        metadata |= handle.metadata() or {}  # type: ignore[no-untyped-call]
        names: list[str] = list(handle.keys())  # type: ignore[no-untyped-call]
        return [_stored(path, handle, name) for name in names]
    except (SafetensorError, OSError, RuntimeError) as error:
        raise SourceError(f"{path}: truncated or damaged: {' '.join(str(error).split())}") from error


def _stored(path: Path, handle: Any, name: str) -> StoredTensor:
    header = handle.get_slice(name)
    stored_as = header.get_dtype()
    try:
        dtype = StoredDtype(stored_as)
    except ValueError:
        raise SourceError(f"{path}: tensor {name} has the unknown type {stored_as}") from None

    def read(rows: Rows | None) -> NDArray[Any]:
        tensor: torch.Tensor = handle.get_tensor(name)
        if rows is not None:
            tensor = tensor[rows[0] : rows[1]]
        return (tensor if (bits := _BITS.get(tensor.dtype)) is None else tensor.view(bits)).numpy()

    return StoredTensor(name, dtype, tuple(header.get_shape()), path.name, read)
