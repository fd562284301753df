"""Writing a folder so that a kill at any moment leaves the old engine, no engine, or the whole new one.

A build fills a hidden sibling of its output and swaps the two in one rename. The builder holds a lock on its
sibling, which the kernel drops when it dies: the next build removes siblings that nobody holds.
"""

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmc.runtime.errors import DiskFull, OutputOccupied, OutputUnwritable

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


@contextmanager
def atomic_folder(output: Path, may_replace: Callable[[Path], bool], needs: int = 0) -> Iterator[Path]:
    """A fresh folder to fill, which becomes `output` when the block ends without an error.

    Raises OutputOccupied, before and after the block, if something lies at `output` that `may_replace` refuses;
    OutputUnwritable before it; DiskFull before it if the bytes that it `needs` at least are not free, and when there is
    no space left. An OSError of the block names files as they would be in `output`. The block is expected to fsync what
    it writes (`artifact.seal` does); the renames are fsynced here.
    """
    output = Path(os.path.abspath(output))
    check_output(output, may_replace)
    if needs > _free_bytes(output):
        raise DiskFull(f"{output}: needs {needs:,} bytes, {_room(output)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    # At its end goes the unfinished folder, or the replaced engine, which bears the sibling's name by then.
    with hidden_sibling(output) as staged:
        try:
            yield staged
            _check_free(output, may_replace)
            _move_into_place(staged, output)
        except OSError as error:
            if error.errno in _NO_SPACE:
                of = f" of the {needs:,} that it needs at least" if needs else ""
                raise DiskFull(
                    f"{output}: no space left after {_tree_bytes(staged):,} bytes{of}, {_room(output)}"
                ) from error
            if (name := _name_in(staged, error)) is not None:
                raise OSError(error.errno, error.strerror, str(output / name)) from error
            raise


def _free_bytes(output: Path) -> int:
    found = os.statvfs(_existing_parent(output))
    return found.f_bavail * found.f_frsize


def _room(output: Path) -> str:
    return f"{_free_bytes(output):,} are free in {_existing_parent(output)}; make room or choose another -o"


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.parents if os.path.exists(parent))


def _name_in(staged: Path, error: OSError) -> Path | None:
    """The file that an error is about, where it lies in the hidden folder, whose name nobody knows."""
    name = error.filename
    path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    return path.relative_to(staged) if path is not None and path.is_relative_to(staged) else None


@contextmanager
def hidden_sibling(output: Path) -> Iterator[Path]:
    """An empty folder beside a path, removed at the end: of this process, or of the next one to come here if this one
    is killed."""
    remove_dead_siblings(output)
    staged, lock = _create_locked(output)
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        os.close(lock)


def check_output(output: Path, may_replace: Callable[[Path], bool]) -> None:
    """Raises OutputOccupied if a build must not put an engine at `output`, OutputUnwritable if it could not."""
    _check_free(output, may_replace)
    check_writable(output)


def check_writable(path: Path, option: str = "-o") -> None:
    """Raises OutputUnwritable where nothing can be made at a path, or hidden beside it. Leaves nothing behind.

    `option`: what the user chooses the path by.
    """
    there = _existing_parent(path)
    probe = there / _sibling(path).name
    try:
        probe.mkdir()
        # What is still to be made goes below the probe, and not where another build may come to rely on it.
        (probe / _sibling(path).relative_to(there)).mkdir(parents=True)
    except OSError as error:
        raise OutputUnwritable(
            f"{path}: cannot be made in {there}: {error.strerror}; choose another {option}"
        ) from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _check_free(output: Path, may_replace: Callable[[Path], bool]) -> None:
    if os.path.islink(output):
        raise OutputOccupied(f"{output}: is a symbolic link; give the folder itself")
    if os.path.exists(output) and not may_replace(output):
        raise OutputOccupied(f"{output}: exists and is no engine, so it is not replaced; choose another -o or move it")


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and itself, to disk."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            _fsync(Path(root) / name)
        _fsync(Path(root))


def _tree_bytes(folder: Path) -> int:
    """On the disk: a file may be longer than what is written of it."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*") if path.is_file())


def _prefix(output: Path) -> str:
    return f".{output.name}.llmc-build-"


def _sibling(output: Path) -> Path:
    return output.parent / (_prefix(output) + secrets.token_hex(8))


def _create_locked(output: Path) -> tuple[Path, int]:
    while True:
        staged = _sibling(output)
        staged.mkdir()
        lock = os.open(staged, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _try_lock(lock)
            if os.stat(staged).st_ino == os.fstat(lock).st_ino:
                return staged, lock
        except (BlockingIOError, FileNotFoundError):
            pass  # another build's clean-up took it between mkdir and lock
        os.close(lock)


def remove_dead_siblings(output: Path) -> None:
    """Remove the hidden siblings of a path whose processes have died."""
    for sibling in output.parent.glob(_glob_escape(_prefix(output)) + "*"):
        try:
            lock = os.open(sibling, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            if _try_lock(lock):
                shutil.rmtree(sibling, ignore_errors=True)
        except BlockingIOError:
            pass  # a build that is alive
        finally:
            os.close(lock)


def _try_lock(descriptor: int) -> bool:
    """Lock, or raise BlockingIOError if another process has the lock; False where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _glob_escape(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _move_into_place(staged: Path, output: Path) -> None:
    if not output.exists():
        os.rename(staged, output)
    elif not _exchange(staged, output):
        # No atomic exchange on this file system: for a moment there is no engine, never half of one.
        old = staged.with_name(staged.name + "-old")
        os.rename(output, old)
        os.rename(staged, output)
        shutil.rmtree(old, ignore_errors=True)
    _fsync(output.parent)


def _exchange(a: Path, b: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = libc.renameat2
    except AttributeError:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(b))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
