"""Engine folders: every damage is found before anything is used, in the documented order, in one line each."""

from __future__ import annotations

import dataclasses
import os
import pydoc
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import (
    confined,
    open_artifact,
    read_manifest,
    seal,
    unread_files,
)
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.manifest import ABI
from llmc.runtime.errors import (
    AbiMismatch,
    ChecksumMismatch,
    EngineError,
    FileMismatch,
    InvalidParameter,
    MachineMismatch,
    NotAnEngine,
    NotEnoughMemory,
)
from tests.runtime.damage import refuse
from tests.runtime.engine_folders import MakeEngine, kv_layout, safetensors_bytes, target


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_sound_engine_opens_wherever_it_lies(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = make_engine()
    moved = tmp_path / "a folder with spaces" / "moved"
    shutil.copytree(folder, moved)
    for path in [*all_files(moved), *[p for p in moved.rglob("*") if p.is_dir()], moved]:
        path.chmod(path.stat().st_mode & ~0o222)
    artifact = open_artifact(moved)
    assert artifact.manifest == read_manifest(folder)
    assert 0 < artifact.hash_seconds <= artifact.open_seconds
    artifact.close()
    artifact.close()
    moved.chmod(0o755)


def test_weights_are_closed_whoever_looks_at_them(make_engine: MakeEngine) -> None:
    """As the frames of an exception do that ends the engine: it is that one which is told."""
    artifact = open_artifact(make_engine())
    seen = np.frombuffer(artifact.weights.view, np.uint8)
    kept = seen.copy()
    artifact.close()
    assert np.array_equal(seen, kept)


def test_every_flipped_bit_is_found(make_engine: MakeEngine) -> None:
    folder = make_engine()
    rng = random.Random(5)
    files = all_files(folder)
    assert len(files) == 7
    for trial in range(140):
        path = files[trial % len(files)]
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(EngineError):
            Engine.load(folder).close()
        path.write_bytes(before)
    Engine.load(folder).close()


def test_every_bit_of_the_weights_is_found(make_engine: MakeEngine) -> None:
    folder = make_engine()
    path = folder / "weights.safetensors"
    before = path.read_bytes()
    for bit in range(64):
        damaged = bytearray(before)
        damaged[len(before) - 8 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        refuse(folder, ChecksumMismatch, "weights.safetensors: content is damaged")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"", lambda b: b + b + b[:8]])
def test_truncated_and_grown_files_are_found(make_engine: MakeEngine, damage: Callable[[bytes], bytes]) -> None:
    folder = make_engine()
    for path in all_files(folder):
        before = path.read_bytes()
        path.write_bytes(damage(before))
        with pytest.raises(EngineError):
            open_artifact(folder)
        path.write_bytes(before)
    open_artifact(folder).close()


def test_files_that_nobody_reads_are_no_damage(make_engine: MakeEngine) -> None:
    """A folder that was browsed or cloned from a hub is the engine still; and it can be said what they are."""
    folder = make_engine()
    extra = [".DS_Store", ".gitattributes", "README.md", "kernels/cpu/.nfs0001", "plans/cpu/notes.txt"]
    for name in extra:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    with Engine.load(folder) as engine:
        assert unread_files(folder, engine.manifest) == sorted(extra)
        assert engine.generate([[4]], max_tokens=1)
        # What the manifest does not name is not read under any name.
        with pytest.raises(FileMismatch, match=r"has no README\.md"):
            engine.artifact.path("README.md")


def test_missing_and_swapped_files(make_engine: MakeEngine) -> None:
    folder = make_engine()
    (folder / "tokenizer.json").rename(folder / "other.json")
    refuse(folder, FileMismatch, "tokenizer.json: missing")
    (folder / "other.json").rename(folder / "tokenizer.json")
    source = folder / "kernels/cpu/src/model.cc"
    source.write_bytes(source.read_bytes()[::-1])
    refuse(folder, ChecksumMismatch, "model.cc: content is damaged")


def test_what_is_no_engine(tmp_path: Path) -> None:
    refuse(tmp_path / "absent", NotAnEngine, "no such folder")
    refuse(tmp_path, NotAnEngine, "no manifest.json")
    (tmp_path / "file").write_text("x")
    refuse(tmp_path / "file", NotAnEngine, "not a folder")
    (tmp_path / "manifest.json").mkdir()
    refuse(tmp_path, NotAnEngine, "no manifest.json")


def test_machine_mismatches_come_before_files(make_engine: MakeEngine) -> None:
    folder = make_engine(targets=(target(arch="x86_64", features=("avx2", "avx512vnni", "amx-bf16")),))
    (folder / "weights.safetensors").unlink()
    have = Machine("x86_64", frozenset(["avx2", "avx512_vnni"]))
    refuse(folder, MachineMismatch, "a CPU with amx-bf16, which this one lacks", have)
    refuse(folder, MachineMismatch, "built for x86_64, this machine is aarch64", Machine("aarch64", frozenset()))
    full = Machine("x86_64", frozenset(["avx2", "avx512_vnni", "amx_bf16"]))
    refuse(folder, FileMismatch, "weights.safetensors: missing", full)


def test_the_first_target_that_the_machine_runs(make_engine: MakeEngine) -> None:
    here = target()
    other, lacking = target(name="arm", arch="elsewhere"), target(name="v9", features=("avx9000",))
    folder = make_engine(targets=(other, lacking, here))
    artifact = open_artifact(folder, device="cpu")
    assert artifact.target == here
    assert [words.split(",")[0] for words in artifact.passed_over] == [
        "built for elsewhere",
        "built for a CPU with avx9000",
    ]
    artifact.close()
    refuse(
        make_engine("none", targets=(other, lacking)),
        MachineMismatch,
        "elsewhere, this.*; built for a CPU with avx9000",
    )


@pytest.mark.parametrize("device", ["gpu", "", 0])
def test_an_unknown_device(make_engine: MakeEngine, device: Any) -> None:
    with pytest.raises(InvalidParameter, match="device must be 'cpu' or 'cuda'"):
        Engine.load(make_engine(), device=device)


def test_a_kind_that_the_engine_lacks(make_engine: MakeEngine) -> None:
    with pytest.raises(MachineMismatch, match="built for cpu, not for cuda; build it again with that target"):
        Engine.load(make_engine(), device="cuda")


def test_an_abi_mismatch_comes_before_files(make_engine: MakeEngine) -> None:
    folder = make_engine(abi=ABI + 1)
    (folder / "weights.safetensors").unlink()
    refuse(folder, AbiMismatch, f"step ABI {ABI + 1}, this llmc speaks {ABI - 1} and {ABI}")


def test_a_library_that_disagrees_with_its_manifest(make_engine: MakeEngine) -> None:
    kv = target().kv
    wide = dataclasses.replace(kv, groups=(dataclasses.replace(kv.groups[0], block_bytes=128),))
    for name, said, expected in (("wide", wide, "128"), ("two", kv_layout((None, 8)), "64, 128")):
        message = rf"KV blocks of \[64\] bytes by group, the manifest says \[{expected}\]"
        with pytest.raises(AbiMismatch, match=message):
            Engine.load(make_engine(name, targets=(target(kv=said),)))


def test_a_library_that_cannot_be_loaded(make_engine: MakeEngine) -> None:
    folder = make_engine()
    (folder / "kernels/cpu/model.so").write_bytes(b"not ELF")
    seal(folder, read_manifest(folder))
    with pytest.raises(AbiMismatch, match="cannot be loaded"):
        Engine.load(folder)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "./a", "a//b", "", ".", "a\0b"])
def test_names_stay_inside_the_engine(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileMismatch):
        confined(tmp_path, name)


def test_links_that_lead_outside_are_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = make_engine()
    outside = tmp_path / "outside.json"
    (folder / "tokenizer.json").rename(outside)
    (folder / "tokenizer.json").symlink_to(outside)
    refuse(folder, FileMismatch, "leads outside")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("tokenizer.json")
    refuse(folder, FileMismatch, "tokenizer.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234567", "too short"),
        (b"\xff" * 8 + b"x" * 100, "header of"),
        ((100).to_bytes(8, "little") + b"{}".ljust(100) + b"data", "no multiple of 4096"),
        ((4088).to_bytes(8, "little") + b"{]".ljust(4088) + b"data", "malformed safetensors header"),
        ((4088).to_bytes(8, "little") + b'{"a": 1}'.ljust(4088) + b"data", "malformed safetensors header"),
        (safetensors_bytes(b"12345678")[:-1], "tensors end at byte 8 of the data, which has 7"),
    ],
)
def test_malformed_weights(make_engine: MakeEngine, content: bytes, message: str) -> None:
    folder = make_engine()
    (folder / "weights.safetensors").write_bytes(content)
    seal(folder, read_manifest(folder))
    refuse(folder, EngineError, message)


def test_too_little_memory_is_said_with_figures(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_engine()
    with pytest.raises(NotEnoughMemory, match="kv_memory is 63 bytes, one KV block of each group needs 64"):
        Engine.load(folder, kv_memory=63)
    monkeypatch.setattr("llmc.runtime.cpu.device.available_bytes", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match="KV pool of 6400 bytes and scratch of 1280 need 7680 bytes, 1000"):
        Engine.load(folder, kv_memory=6400)


def test_sealing_twice_gives_the_same_bytes(make_engine: MakeEngine) -> None:
    a, b = make_engine("a"), make_engine("b")
    os.utime(b / "weights.safetensors", (0, 0))
    assert {p.relative_to(a): p.read_bytes() for p in all_files(a)} == {
        p.relative_to(b): p.read_bytes() for p in all_files(b)
    }
    assert stat.S_ISREG((a / "manifest.json").stat().st_mode)


@pytest.mark.parametrize(
    "name", ["$ORIGIN", "$LIB", "${PLATFORM}x", "%s", "[bold]", "a\nb", "é☃", os.fsdecode(b"\xff")]
)
def test_an_engine_loads_under_any_name(make_engine: MakeEngine, tmp_path: Path, name: str) -> None:
    """The dynamic loader expands `$`; libraries want paths in UTF-8."""
    folder = make_engine().rename(tmp_path / name)
    with Engine.load(folder) as engine:
        assert engine.generate([[1, 2]], max_tokens=1)[0].error is None


def test_what_is_read_later_is_what_was_checked(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Another engine may lie at the path by the time the chat template is wanted."""
    folder = make_engine("old")
    other = make_engine("new", template="another")
    with Engine.load(folder) as engine:
        folder.rename(tmp_path / "gone")
        other.rename(folder)
        assert "x<|im_end|>" in engine.chat_template.render([{"role": "user", "content": "x"}])
        with pytest.raises(ChecksumMismatch):
            engine.artifact.read_bytes("chat_template.jinja")


@pytest.mark.parametrize(
    "moment", ["artifact.artifact.check_sizes", "artifact.artifact._map_weights", "loop.core.open_device"]
)
def test_an_engine_that_is_replaced_while_it_loads(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = make_engine("old")
    other = make_engine("new", template="another", producer={"llmc": "newer"})
    original: Any = pydoc.locate(f"llmc.runtime.{moment}")
    swaps: list[Path] = []

    def after_a_swap(*args: Any) -> Any:
        if not swaps:
            folder.rename(tmp_path / "gone")
            swaps.append(other.rename(folder))
        return original(*args)

    monkeypatch.setattr(f"llmc.runtime.{moment}", after_a_swap)
    with Engine.load(folder) as engine:
        assert swaps and engine.manifest.producer == {"llmc": "newer"}
        assert engine.chat_template.render([{"role": "user", "content": "x"}]) == "another"


def test_files_that_vanish_while_they_are_read(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_engine()

    def vanish(path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("llmc.runtime.artifact.artifact.file_digest", vanish)
    refuse(folder, FileMismatch, "cannot be read: No such file")
