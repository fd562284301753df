"""Reading and sealing engine folders. The schema is `manifest.py`; the check order is docs/engine.md.

`open_artifact` checks everything that can be checked before a weight is read, then the files. Each failure is
one `EngineError` whose message says what, where, expected against got.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from llmc.runtime.artifact.atomic_folder import fsync_tree
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.hashing import BackgroundDigest, digest, file_digest
from llmc.runtime.artifact.manifest import CPU, FORMAT, FileEntry, Manifest, TargetEntry
from llmc.runtime.artifact.previous_format import PREVIOUS, as_today
from llmc.runtime.artifact.strict_json import JsonMismatch, from_plain, parse_json, render_json, to_plain
from llmc.runtime.artifact.target import ChosenTarget, choose_target
from llmc.runtime.artifact.weights import Weights
from llmc.runtime.errors import (
    ChecksumMismatch,
    EngineError,
    FileMismatch,
    FormatTooNew,
    ManifestInvalid,
    NotAnEngine,
)

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
_MAX_MANIFEST_BYTES = 64 << 20


@dataclass
class EngineFiles:
    """The files of an engine folder as its manifest names them; each is checked when it is read."""

    folder: Path
    manifest: Manifest

    @property
    def files_digest(self) -> str:
        """Of all files: engines whose digests are equal are the same one, wherever they lie."""
        names = sorted(self.manifest.files)
        return digest("\n".join(f"{name} {self.manifest.files[name].blake3}" for name in names).encode())

    def has(self, name: str) -> bool:
        return name in self.manifest.files

    def path(self, name: str) -> Path:
        """Path of a file of the manifest. Raises FileMismatch if the engine has none of that name."""
        if name not in self.manifest.files:
            raise FileMismatch(f"{self.folder}: the engine has no {name}")
        return confined(self.folder, name)

    def open_checked(self, name: str) -> BinaryIO:
        """A file of the manifest, open at its start, whose bytes have just been found to be the build's.

        Whatever lies at the path meanwhile, another engine even, what is read from it is this engine's. Raises
        FileMismatch, ChecksumMismatch.
        """
        path = self.path(name)
        with _readable(path):
            file = path.open("rb")
            try:
                _check_digest(self.folder, self.manifest, name, digest(file.read()))
                file.seek(0)
            except BaseException:
                file.close()
                raise
        return file

    def read_bytes(self, name: str) -> bytes:
        """All bytes of a file of the manifest, as the build wrote them. Raises FileMismatch, ChecksumMismatch."""
        with self.open_checked(name) as file:
            return file.read()


@dataclass
class Artifact(EngineFiles):
    """An engine folder that passed every check.

    `target` is the one of its targets that this machine runs; `passed_over` says in a line each why it does not run
    those that would have come first. Owns the mapping of the weights; close it after the device.
    """

    weights: Weights
    target: TargetEntry
    passed_over: tuple[str, ...] = ()
    hash_seconds: float = 0.0  # wall time of hashing the weights, other work beside it
    open_seconds: float = 0.0
    closed: bool = field(default=False, init=False)

    @property
    def content_digest(self) -> bytes:
        """Of the target's name and of every file of the engine: what its answers depend on."""
        files = (f"{name} {entry.blake3}" for name, entry in sorted(self.manifest.files.items()))
        return bytes.fromhex(digest("\n".join([self.target.name, *files]).encode()))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.weights.close()


def open_artifact(
    folder: Path,
    machine: Machine | None = None,
    meanwhile: Callable[[Artifact], None] | None = None,
    device: str | None = None,
) -> Artifact:
    """Check an engine folder completely, choose its target and map its weights. Raises an EngineError subclass.

    `meanwhile` is called while another thread hashes the weights; everything else is checked by then. `device` asks
    for a kind of target, cpu or cuda (InvalidParameter for any other).
    """
    start = time.perf_counter()
    manifest = read_manifest(folder)
    choice = choose_target(folder, manifest, machine or Machine.this(), device)
    with _readable(folder):
        check_sizes(folder, manifest)
        for name in (WEIGHTS, *_files_of(choice.target)):
            if name not in manifest.files:
                raise FileMismatch(f"{folder}: the engine has no {name}")
        for name in sorted(set(manifest.files) - {WEIGHTS}):
            _check_digest(folder, manifest, name, file_digest(confined(folder, name)))
    artifact = _map_weights(folder, manifest, choice)
    try:
        hashing = BackgroundDigest(artifact.weights.view)
        try:
            if meanwhile is not None:
                meanwhile(artifact)
        except BaseException:
            hashing.abandon()
            raise
        finally:
            found = hashing.result()
        artifact.hash_seconds = hashing.seconds
        _check_digest(folder, manifest, WEIGHTS, found)
    except BaseException:
        artifact.close()
        raise
    artifact.open_seconds = time.perf_counter() - start
    return artifact


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """OSError as FileMismatch: what cannot be read, or has just been taken away, is not what the manifest says."""
    try:
        yield
    except OSError as error:
        raise FileMismatch(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def _files_of(target: TargetEntry) -> tuple[str, ...]:
    """What a target cannot do without, beside the files that its plans name."""
    return (target.library,) if target.kind == CPU else (target.plan("prefill"), target.plan("decode"))


def _map_weights(folder: Path, manifest: Manifest, choice: ChosenTarget) -> Artifact:
    """The mapping that is hashed is the mapping that is used: pages are touched once, and no swap of the file between
    check and use can go unseen."""
    weights = Weights.map(confined(folder, WEIGHTS))
    try:
        weights.locate_data()
    except EngineError:
        try:  # that the file is damaged explains more
            _check_digest(folder, manifest, WEIGHTS, digest(weights.view))
        finally:
            weights.close()
        raise
    return Artifact(folder, manifest, weights, choice.target, choice.passed_over)


def identity(folder: Path) -> tuple[int, int] | None:
    """Which folder lies at a path at the moment; None if there is none. A build that replaces an engine changes it."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """A small file of an engine that is not opened, its checksum checked. Raises FileMismatch, ChecksumMismatch."""
    if name not in manifest.files:
        raise FileMismatch(f"{folder}: the engine has no {name}")
    path = confined(folder, name)
    if not path.is_file():
        raise FileMismatch(f"{path}: missing; copy or build the engine again")
    with _readable(path):
        content = path.read_bytes()
    _check_digest(folder, manifest, name, digest(content))
    return content


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an engine folder, its own checksum checked; no other file is opened. One of the format before
    today's is read as today's."""
    path = folder / MANIFEST
    plain = _read_plain(folder)
    form = plain.get("format")
    if not isinstance(form, int) or isinstance(form, bool):
        raise ManifestInvalid(f"{path}: format: expected an integer, got {form!r}")
    if form not in (PREVIOUS, FORMAT):
        older = "an older llmc; build it again" if form < FORMAT else "a newer llmc; update llmc"
        raise FormatTooNew(
            f"{path}: engine format {form}, this llmc reads formats {PREVIOUS} and {FORMAT}: made by {older}"
        )
    _check_manifest(path, plain, path.read_bytes())
    try:
        return from_plain(Manifest, plain if form == FORMAT else as_today(plain))
    except JsonMismatch as error:
        raise ManifestInvalid(f"{path}: {error}") from error


def _check_manifest(path: Path, plain: dict[str, Any], content: bytes) -> None:
    """Its own checksum, which is taken out of `plain`, and that the bytes are those that such a manifest is written
    as. Raises ChecksumMismatch."""
    checksum = plain.pop("checksum", None)
    expected = digest(render_json(plain))
    written = render_json({**plain, "checksum": checksum})
    if checksum != expected:
        found = f"its content has the checksum {expected[:16]}..., not {str(checksum)[:16]}..., which stands in it"
    elif written != content:
        at = next((i for i, (a, b) in enumerate(zip(written, content, strict=False)) if a != b), None)
        at = min(len(written), len(content)) if at is None else at
        found = f"{len(content)} bytes, expected {len(written)}; the first difference is at byte {at}"
    else:
        return
    raise ChecksumMismatch(f"{path}: the manifest is damaged or was edited: {found}; copy or build the engine again")


def render_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json: canonical JSON with the checksum of the same JSON without it."""
    plain = to_plain(manifest)
    return render_json({**plain, "checksum": digest(render_json(plain))})


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Finish a folder that a build has filled: hash every file, write manifest.json last, fsync all of it.

    `manifest.files` is replaced by what lies in the folder. Returns the manifest as written.
    """
    names = sorted(set(_files_below(folder)) - {MANIFEST})
    entries = {name: FileEntry((folder / name).stat().st_size, file_digest(folder / name)) for name in names}
    sealed = replace(manifest, files=entries)
    from_plain(Manifest, to_plain(sealed))  # a manifest that its own reader refuses is our bug: find it here
    (folder / MANIFEST).write_bytes(render_manifest(sealed))
    fsync_tree(folder)
    return sealed


def is_engine(folder: Path) -> bool:
    """Whether a folder says that it is an engine, of whatever format: its manifest alone is looked at, which costs
    nothing. What reads an engine then checks the rest, and tells what is wrong with it."""
    try:
        plain = _read_plain(folder)
    except (NotAnEngine, ManifestInvalid):
        return False
    return isinstance(plain.get("format"), int) and isinstance(plain.get("checksum"), str)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """The manifest's files, with their sizes. Raises FileMismatch. Others are no damage: nobody reads them."""
    for name, entry in sorted(manifest.files.items()):
        path = confined(folder, name)
        if not path.is_file():
            raise FileMismatch(f"{folder / name}: missing; copy or build the engine again")
        size = path.stat().st_size
        if size != entry.bytes:
            raise FileMismatch(
                f"{folder / name}: {size} bytes, the manifest says {entry.bytes}; copy or build the engine again"
            )


def unread_files(folder: Path, manifest: Manifest) -> list[str]:
    """What lies in an engine's folder and is no part of it (.DS_Store, a hub's README), sorted."""
    return sorted(set(_files_below(folder)) - set(manifest.files) - {MANIFEST})


def confined(folder: Path, name: str) -> Path:
    """`folder/name`, refused unless it stays below `folder` with symbolic links resolved.

    Raises FileMismatch.
    """
    pure = PurePosixPath(name)
    plain = name == str(pure) and not pure.is_absolute() and ".." not in pure.parts and name != "."
    if not plain or "\\" in name or "\0" in name:
        raise FileMismatch(f"{folder}: file name {name!r} is not a plain path inside the engine")
    try:
        inside = (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:
        raise FileMismatch(f"{folder / name}: cannot be resolved: {error}") from error
    if not inside:
        raise FileMismatch(f"{folder / name}: leads outside the engine's folder")
    return folder / name


def _check_digest(folder: Path, manifest: Manifest, name: str, found: str) -> None:
    expected = manifest.files[name].blake3
    if found != expected:
        raise ChecksumMismatch(
            f"{folder / name}: content is damaged: BLAKE3 is {found[:16]}..., the manifest says "
            f"{expected[:16]}...; copy or build the engine again"
        )


def _read_plain(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        if not folder.exists():
            raise NotAnEngine(f"{folder}: no such folder; give the one that `llmc build` wrote")
        if not folder.is_dir():
            raise NotAnEngine(f"{folder}: not a folder; an engine is one, written by `llmc build`")
        if not path.is_file():
            raise NotAnEngine(f"{folder}: no {MANIFEST}, so this is not an engine")
        size = path.stat().st_size
        if size > _MAX_MANIFEST_BYTES:
            raise ManifestInvalid(f"{path}: {size} bytes, more than any manifest ({_MAX_MANIFEST_BYTES})")
        plain = parse_json(path.read_bytes())
    except OSError as error:
        raise NotAnEngine(f"{path}: cannot be read: {error.strerror}") from error
    except JsonMismatch as error:
        raise ManifestInvalid(f"{path}: {error}: the manifest is damaged; copy or build the engine again") from error
    if not isinstance(plain, dict):
        raise ManifestInvalid(f"{path}: expected an object, got {type(plain).__name__}")
    return plain


def _files_below(folder: Path) -> Iterator[str]:
    for root, _, files in os.walk(folder):
        for name in files:
            yield (Path(root) / name).relative_to(folder).as_posix()
