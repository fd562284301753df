"""Builds that are killed, fail or race: the output is the old engine, nothing, or the whole new one."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmc.runtime.artifact import atomic_folder as module
from llmc.runtime.artifact.artifact import is_engine, open_artifact, read_manifest
from llmc.runtime.artifact.atomic_folder import atomic_folder, check_output
from llmc.runtime.errors import DiskFull, EngineError, OutputOccupied, OutputUnwritable

BUILD = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from engine_folders import fill_engine
from llmc.runtime.artifact.artifact import is_engine
from llmc.runtime.artifact.atomic_folder import atomic_folder
print("ready", flush=True)
for name in ("one", "two", "three", "four"):
    with atomic_folder(Path({output!r}), is_engine) as folder:
        fill_engine(folder, {library!r}, producer={{"llmc": name}})
print("done", flush=True)
"""


@pytest.fixture
def build_script(reference_library):
    def script(output):
        tests = str(Path(__file__).parent)
        return BUILD.format(tests=tests, output=str(output), library=str(reference_library))

    return script


def leftovers(output):
    return [p for p in output.parent.iterdir() if p != output]


def fill(output, name="one"):
    from engine_folders import manifest

    from llmc.runtime.artifact.artifact import seal

    with atomic_folder(output, is_engine) as folder:
        (folder / "x").write_text(name)
        seal(folder, manifest(producer={"llmc": name}))


@pytest.mark.parametrize("exchange", [True, False])
def test_an_engine_replaces_an_engine(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(module, "_exchange", lambda a, b: False)
    output = tmp_path / "deep" / "er" / "engine"
    for name in ("one", "two"):
        fill(output, name)
        assert read_manifest(output).producer == {"llmc": name} and (output / "x").read_text() == name
        assert leftovers(output) == []


def test_a_failing_build_leaves_the_old_engine(tmp_path):
    output = tmp_path / "engine"
    fill(output)
    with pytest.raises(ZeroDivisionError), atomic_folder(output, is_engine) as folder:
        (folder / "half").write_text("x")
        raise ZeroDivisionError
    assert read_manifest(output).producer == {"llmc": "one"} and leftovers(output) == []


def test_a_full_disk_is_one_line_with_figures(tmp_path):
    """Of the bytes that were written: a file may be longer."""
    output = tmp_path / "engine"
    said = r"engine: no space left after [\d,]{1,9} bytes of the 9,999 that it needs at least, [\d,]+ are free in "
    with pytest.raises(DiskFull, match=said), atomic_folder(output, is_engine, 9999) as folder:  # noqa: SIM117
        with (folder / "sparse").open("wb") as file:
            file.truncate(1 << 40)
            raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_found_before_anything_is_written(tmp_path):
    output = tmp_path / "engine"
    said = rf"engine: needs 1,152,921,504,606,846,976 bytes, [\d,]+ are free in {tmp_path}; make room or choose"
    with pytest.raises(DiskFull, match=said), atomic_folder(output, is_engine, 1 << 60):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_output_and_not_the_hidden_folder(tmp_path):
    output = tmp_path / "engine"
    with pytest.raises(FileNotFoundError) as caught, atomic_folder(output, is_engine) as folder:
        (folder / "kernels" / "x").write_text("no such folder")
    assert caught.value.filename == str(output / "kernels" / "x")
    for other in (
        PermissionError(errno.EACCES, "no", "elsewhere"),
        OSError(errno.EIO, "no name"),
        OSError("no number"),
    ):
        with pytest.raises(OSError) as caught, atomic_folder(output, is_engine):
            raise other
        assert caught.value is other
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file/below/engine", "x" * 240, "d" * 300 + "/engine", "deep/" + "x" * 240])
def test_an_output_that_cannot_be_made_is_found_first(tmp_path, name):
    """In the user's words: where it was to go, which folder refused, and why."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputUnwritable) as caught:
        check_output(tmp_path / name, is_engine)
    assert str(caught.value).startswith(f"{tmp_path / name}: cannot be made in {tmp_path}")
    assert "llmc-build" not in str(caught.value) and str(caught.value).endswith("; choose another -o")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_write_permission_is_found_first(tmp_path, monkeypatch):
    def refuse(path, *args, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere
    with pytest.raises(OutputUnwritable, match=rf"a/engine: cannot be made in {tmp_path}: Permission denied; choose"):
        check_output(tmp_path / "a" / "engine", is_engine)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    output = tmp_path / "engine"
    (tmp_path / ".engine.llmc-build-maybe-alive").mkdir()
    fill(output)
    assert [p.name for p in leftovers(output)] == [".engine.llmc-build-maybe-alive"]


def test_what_is_no_engine_is_not_replaced(tmp_path):
    output = tmp_path / "engine"
    for make in (output.mkdir, lambda: output.write_text("mine"), lambda: output.symlink_to(tmp_path / "elsewhere")):
        make()
        with pytest.raises(OutputOccupied, match="engine"):
            fill(output)
        output.rmdir() if output.is_dir() else output.unlink()
    assert list(tmp_path.iterdir()) == []


def test_what_appears_during_the_build_is_not_replaced(tmp_path):
    output = tmp_path / "engine"
    with pytest.raises(OutputOccupied), atomic_folder(output, is_engine):
        output.write_text("mine")
    assert output.read_text() == "mine" and leftovers(output) == []


def test_a_build_that_runs_keeps_its_folder(tmp_path):
    output = tmp_path / "en[g]ine*"
    with atomic_folder(output, is_engine) as first:
        (first / "a").write_text("first")
        fill(output, "second")
        assert (first / "a").read_text() == "first"
        with pytest.raises(EngineError):
            open_artifact(first)
        from engine_folders import manifest

        from llmc.runtime.artifact.artifact import seal

        seal(first, manifest(producer={"llmc": "first"}))
    assert read_manifest(output).producer == {"llmc": "first"} and leftovers(output) == []


def test_kill_at_random_moments_leaves_nothing_that_loads_half(tmp_path, build_script):
    output = tmp_path / "engine"
    rng = random.Random(1)
    start = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", build_script(output)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        ready = time.monotonic()
        assert process.wait() == 0
    length = time.monotonic() - ready
    assert time.monotonic() - start < 60
    states = set()
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", build_script(output)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, length))
            os.kill(process.pid, signal.SIGKILL)
        if output.exists():
            open_artifact(output).close()
            states.add(read_manifest(output).producer["llmc"])
        for other in leftovers(output):
            assert other.name.startswith(".engine.llmc-build-")
    assert states <= {"one", "two", "three", "four"} and states
    fill(output, "after")
    assert read_manifest(output).producer == {"llmc": "after"}
    assert leftovers(output) == [], "the next build removes what dead ones left"
