"""What the emulator compiles, kept by content in the user's cache; what nobody has used for a month is let go."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

UNUSED_S = 30 * 24 * 3600


def cache_dir() -> Path:
    """The folder `emulator` in $LLMC_CACHE, else in $XDG_CACHE_HOME/llmc, else in ~/.cache/llmc; absolute."""
    if stated := os.environ.get("LLMC_CACHE"):
        return Path(stated).absolute() / "emulator"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg).absolute() if xdg else Path.home() / ".cache") / "llmc" / "emulator"


def found(entry: Path) -> bool:
    """Whether a file or folder is in the cache; if so, it is in use from now on."""
    if not entry.exists():
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
    """Copies a finished file into the cache, then renames it: readers see all of it or nothing."""
    final.parent.mkdir(parents=True, exist_ok=True)
    private = _private(final)
    shutil.copy(made, private)
    os.replace(private, final)
    return final


def _private(final: Path) -> Path:
    return final.with_suffix(f".{os.getpid()}.tmp")


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
