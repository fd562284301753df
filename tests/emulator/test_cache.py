"""The cache of compiled things: where it is, what is let go, two processes at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmc.emulator.cache import UNUSED_S, cache_dir, forget_unused, found, publish


@pytest.mark.parametrize(
    ("stated", "xdg", "expected"),
    [("there", "x", "there/emulator"), ("", "x", "x/llmc/emulator"), ("", "", "home/.cache/llmc/emulator")],
)
def test_where_it_is(stated: str, xdg: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of the models' cache (llmc.compiler.sources.demo); absolute, whatever the variables hold."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("LLMC_CACHE", stated), ("XDG_CACHE_HOME", xdg), ("HOME", str(tmp_path / "home"))):
        monkeypatch.setenv(name, value)
    assert cache_dir() == tmp_path / expected


def test_what_nobody_uses_goes(tmp_path: Path) -> None:
    """Files, folders, links; found ones stay, links are as old as they are and not as what they point to."""
    now = 2_000_000_000.0
    made = tmp_path / "made"
    made.write_bytes(b"x")
    entries = {
        name: tmp_path / name
        for name in (
            "driver-old",
            "driver-used",
            "twins/old.so",
            "twins/used.so",
            "objects/old.o",
            "cubins/old.cubin",
            "engines/old",
        )
    }
    for entry in entries.values():
        file = entry if entry.suffix else entry / "library.so"
        publish(made, file)
    (tmp_path / "engines/old/twin.so").symlink_to("../../twins/used.so")
    for entry in entries.values():
        os.utime(entry, (now - UNUSED_S - 1, now - UNUSED_S - 1))
        if "used" in entry.name:
            assert found(entry)
            os.utime(entry, (now - UNUSED_S + 1, now - UNUSED_S + 1))
    forget_unused(tmp_path, now)
    assert {name for name, entry in entries.items() if entry.exists()} == {"driver-used", "twins/used.so"}
    assert not found(entries["twins/old.so"])


def test_finding_is_using(tmp_path: Path) -> None:
    made, final = tmp_path / "made", tmp_path / "twins" / "a.so"
    made.write_bytes(b"x")
    assert publish(made, final) == final and [p.name for p in final.parent.iterdir()] == ["a.so"]
    os.utime(final, (0, 0))
    assert found(final)
    forget_unused(tmp_path)
    assert final.read_bytes().startswith(b"x")


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed", "of another version"])
def test_a_damaged_file_is_not_found(damage: str, tmp_path: Path) -> None:
    """It is made anew: what is found is loaded, and a library that was cut off kills whoever loads it."""
    made, final = tmp_path / "made", tmp_path / "twins" / "a.so"
    made.write_bytes(bytes(range(256)) * 40)
    whole = publish(made, final).read_bytes()
    final.write_bytes(
        {
            "cut": whole[:4096],
            "emptied": b"",
            "changed": whole[:100] + b"?" + whole[101:],
            "of another version": made.read_bytes(),
        }[damage]
    )
    assert not found(final)
    assert found(publish(made, final)) and final.read_bytes() == whole


def test_a_folder_is_whole_or_gone_when_forgetting_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found must be whole: a folder of twins that lacks one would be used for ever."""
    folder = tmp_path / "engines" / "old"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))

    class Killed(BaseException):
        pass

    def rmtree(path: Path) -> None:
        raise Killed

    monkeypatch.setattr("shutil.rmtree", rmtree)
    with pytest.raises(Killed):
        forget_unused(tmp_path)
    assert not found(folder)
    monkeypatch.undo()
    (rest,) = folder.parent.iterdir()
    os.utime(rest, (0, 0))
    forget_unused(tmp_path)
    assert not list(folder.parent.iterdir())
