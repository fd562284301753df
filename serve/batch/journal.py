"""What a batch has answered so far, beside its output: a file that only grows, and outlives a kill at any moment.

The first line says what the batch is of. Every other one is `CRC32 NUMBER JSON`: the output line of input line NUMBER.
A line that was being written when the end came is recognised by its checksum, and cut off.
"""

import fcntl
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from llmc.serve.batch.failure import BatchRefused


@dataclass(frozen=True)
class _Place:
    offset: int
    length: int


class Journal:
    """Held by one run at a time. `with Journal.open(...)`; `finish` it, or go on with it later."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._end = 0
        self._places: dict[int, _Place] = {}
        self._dirty = False

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any]) -> "Journal":
        """Begin one, or go on with what is there. Raises BatchRefused, OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        journal = cls(path, fd)
        try:
            journal._lock()
            journal._read(header)
        except BaseException:
            os.close(fd)
            raise
        return journal

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def line(self, number: int) -> bytes:
        place = self._places[number]
        return os.pread(self._fd, place.length, place.offset)

    def append(self, number: int, line: bytes) -> None:
        """It is in the file when this returns, and survives the machine's end after the next `sync`."""
        numbered = b"%d %s" % (number, line)
        offset = self._end + len(b"%08x %d " % (0, number))
        self._write(b"%08x %s\n" % (zlib.crc32(numbered), numbered))
        self._places[number] = _Place(offset, len(line))

    def sync(self) -> None:
        if self._dirty:
            self._dirty = False
            os.fsync(self._fd)

    def finish(self, output: Path, numbers: Iterable[int]) -> None:
        """The output, in the order of `numbers`: all of it or nothing. The journal goes."""
        partial = output.with_name(f".{output.name}.partial")
        with partial.open("wb") as file:
            for number in numbers:
                file.write(self.line(number) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, output)
        _sync_folder(output.parent)
        self.path.unlink()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchRefused(f"{self.path}: another run is at this batch") from error

    def _read(self, header: Mapping[str, Any]) -> None:
        with os.fdopen(os.dup(self._fd), "rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):  # new, or killed before it held anything
                os.ftruncate(self._fd, 0)
                self._write(orjson.dumps(dict(header)) + b"\n")
                self.sync()
                _sync_folder(self.path.parent)
                return
            self._compare(first, header)
            self._end = len(first)
            for line in file:
                if not self._take(line):
                    break  # what follows, if anything does, is answered again: the same bytes
        os.ftruncate(self._fd, self._end)

    def _compare(self, first: bytes, header: Mapping[str, Any]) -> None:
        try:
            found = orjson.loads(first)
            assert isinstance(found, dict)
        except (orjson.JSONDecodeError, AssertionError) as error:
            raise BatchRefused(f"{self.path}: no journal of a batch") from error
        for name, value in header.items():
            if found.get(name) != value:
                raise BatchRefused(
                    f"{self.path}: the batch under way has another {name}: {found.get(name)}, now {value}; "
                    f"take the file away to begin anew"
                )

    def _take(self, line: bytes) -> bool:
        """One record; False if it is torn or no record."""
        checksum, _, numbered = line[:-1].partition(b" ")
        number, _, text = numbered.partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(numbered):
            return False
        self._places[int(number)] = _Place(self._end + len(line) - 1 - len(text), len(text))
        self._end += len(line)
        return True

    def _write(self, data: bytes) -> None:
        """All of it or, where the disk is full, nothing."""
        self._dirty = True
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._end + done)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
