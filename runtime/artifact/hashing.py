"""BLAKE3 of an engine's files, on all cores."""

import mmap
import threading
import time
from pathlib import Path

from blake3 import blake3

_MAP_FROM_BYTES = 1 << 16
_PIECE_BYTES = 256 << 20  # large enough for all cores, small enough to stop soon


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


class BackgroundDigest(threading.Thread):
    """`digest` of a buffer in another thread, started at once. The buffer must live until `result` returns."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(name="llmc-hash", daemon=True)
        self._data = data
        self._found: str | BaseException | None = None
        self._abandoned = False
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        start = time.perf_counter()
        try:
            hasher = blake3(max_threads=blake3.AUTO)
            for at in range(0, len(self._data), _PIECE_BYTES):
                if self._abandoned:
                    break
                hasher.update(self._data[at : at + _PIECE_BYTES])
            self._found = str(hasher.hexdigest())
        except BaseException as error:  # raised again where the result is asked for
            self._found = error
        self.seconds = time.perf_counter() - start

    def abandon(self) -> None:
        """Nobody wants the digest: `result` returns soon, with one that means nothing."""
        self._abandoned = True

    def result(self) -> str:
        self.join()
        if isinstance(self._found, str):
            return self._found
        raise self._found or RuntimeError("the hashing thread ended without a result")
