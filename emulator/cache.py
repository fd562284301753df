"""What the emulator compiles, kept by content in the user's cache; what nobody has used for a month is let go.

A file ends with a checksum of the rest, which no reader of an object or a library looks at: a process that loads one
that was cut off would be killed by the first page that is not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

UNUSED_S = 30 * 24 * 3600
_SEAL = b"llmc sha256 "
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size


def cache_dir() -> Path:
    """The folder `emulator` in $LLMC_CACHE, else in $XDG_CACHE_HOME/llmc, else in ~/.cache/llmc; absolute."""
    if stated := os.environ.get("LLMC_CACHE"):
        return Path(stated).absolute() / "emulator"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg).absolute() if xdg else Path.home() / ".cache") / "llmc" / "emulator"


def found(entry: Path) -> bool:
    """Whether a folder, or a file that is as it was published, is in the cache; if so, it is in use from now on."""
    if not (entry.is_dir() or _is_whole(entry)):
        return False
    with suppress(OSError):  # a cache that may only be read
        os.utime(entry)
    return True


def expect(final: Path) -> None:
    """Before a file is compiled that is to be published: raises OSError now where it could not be."""
    final.parent.mkdir(parents=True, exist_ok=True)
    private = _private(final)
    private.touch()
    private.unlink()


def publish(made: Path, final: Path) -> Path:
    """Copies a finished file into the cache and seals it, then renames it: readers see all of it or nothing."""
    final.parent.mkdir(parents=True, exist_ok=True)
    private = _private(final)
    shutil.copy(made, private)
    with private.open("ab") as file:
        file.write(_SEAL + hashlib.sha256(made.read_bytes()).digest())
    os.replace(private, final)
    return final


def _private(final: Path) -> Path:
    return final.with_suffix(f".{os.getpid()}.tmp")


def _is_whole(file: Path) -> bool:
    try:
        content = file.read_bytes()
    except OSError:
        return False
    return content[-_SEAL_BYTES:] == _SEAL + hashlib.sha256(content[:-_SEAL_BYTES]).digest()


def forget_unused(cache: Path, now: float | None = None) -> None:
    """Deletes entries (drivers, and what lies in the other folders) that were not found or published for UNUSED_S
    seconds. Whoever has one loaded keeps it: its memory outlives the file."""
    oldest = (time.time() if now is None else now) - UNUSED_S
    for entry in [*cache.glob("driver-*"), *(e for e in cache.glob("*/*") if not e.parent.name.startswith("driver-"))]:
        with suppress(OSError):  # another process was first
            if entry.lstat().st_mtime < oldest:
                _forget(entry)


def _forget(entry: Path) -> None:
    """A folder gets another name first: one that is found is whole, even if this process is killed halfway."""
    if entry.is_symlink() or not entry.is_dir():
        return entry.unlink()
    dying = entry.with_name(f"{entry.name}.{os.getpid()}.tmp")
    entry.rename(dying)
    shutil.rmtree(dying)
