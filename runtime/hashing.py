"""BLAKE3 of an engine's files, on all cores."""

import mmap
from pathlib import Path

from blake3 import blake3

_MAP_FROM_BYTES = 1 << 16


def digest(data: "bytes | memoryview | mmap.mmap") -> str:
    """BLAKE3 of `data`, 64 hex digits, by as many threads as there are cores."""
    return str(blake3(data, max_threads=blake3.AUTO).hexdigest())


def file_digest(path: Path) -> str:
    """BLAKE3 of a file, read through a mapping so that large files use no memory of ours. Raises OSError."""
    if path.stat().st_size < _MAP_FROM_BYTES:
        return digest(path.read_bytes())
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(path)
    return str(hasher.hexdigest())
