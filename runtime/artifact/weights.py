"""weights.safetensors, mapped: the kernels read packed tensors where they lie in the page cache."""

import contextlib
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmc.runtime.artifact.strict_json import JsonMismatch, parse_json
from llmc.runtime.errors import FileMismatch, ManifestInvalid

DATA_ALIGNMENT = 4096
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20


@dataclass
class Weights:
    """A read-only mapping of the file.

    `address` is that of the data section, and `spans` are the tensors' first bytes and ends in it, once `locate_data`
    has found them.
    """

    path: Path
    mapping: mmap.mmap
    data_offset: int = 0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    view: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.view = memoryview(self.mapping)

    @classmethod
    def map(cls, path: Path) -> "Weights":
        """Map the file; nothing is read yet. Raises FileMismatch if it cannot be."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < _LENGTH_BYTES:
                    raise FileMismatch(f"{path}: {size} bytes is too short for a safetensors file")
                mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except OSError as error:
            raise FileMismatch(f"{path}: cannot be mapped: {error.strerror}") from error
        mapping.madvise(mmap.MADV_WILLNEED)
        return cls(path, mapping)

    @property
    def address(self) -> int:
        return int(np.frombuffer(self.view, dtype=np.uint8).ctypes.data) + self.data_offset

    @property
    def data_bytes(self) -> int:
        return len(self.view) - self.data_offset

    def locate_data(self) -> None:
        """Find the data section and check that tensors fill it and that it is aligned.

        Raises FileMismatch.
        """
        length = int.from_bytes(self.view[:_LENGTH_BYTES], "little")
        if length > min(_MAX_HEADER_BYTES, len(self.view) - _LENGTH_BYTES):
            raise FileMismatch(f"{self.path}: header of {length} bytes does not fit a file of {len(self.view)}")
        self.data_offset = _LENGTH_BYTES + length
        if self.data_offset % DATA_ALIGNMENT:
            raise FileMismatch(f"{self.path}: data starts at byte {self.data_offset}, no multiple of {DATA_ALIGNMENT}")
        self.spans = _spans(self.path, bytes(self.view[_LENGTH_BYTES : self.data_offset]))
        end = max((end for _, end in self.spans.values()), default=0)
        if end > self.data_bytes:
            raise FileMismatch(f"{self.path}: tensors end at byte {end} of the data, which has {self.data_bytes}")

    def close(self) -> None:
        """What still has a view, as the frames of an exception under way may, keeps the pages until it goes."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self.mapping.close()


def _spans(path: Path, header: bytes) -> dict[str, tuple[int, int]]:
    try:
        tensors = parse_json(header)
        offsets = {name: tensor["data_offsets"] for name, tensor in tensors.items() if name != "__metadata__"}
        spans = {name: (int(start), int(end)) for name, (start, end) in offsets.items()}
    except (JsonMismatch, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ManifestInvalid(f"{path}: malformed safetensors header: {error}") from error
    for name, (start, end) in spans.items():
        if not 0 <= start <= end:
            raise ManifestInvalid(f"{path}: malformed safetensors header: {name} spans {start} to {end}")
    return spans
