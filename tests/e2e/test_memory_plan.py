"""The manifest's memory plan is what the compiled library allocates, to the byte."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from llmc.ir.formats import Scheme
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.cpu.device import CpuDevice
from tests.e2e.engines import Engines


class Mallinfo2(ctypes.Structure):
    """glibc's: the fifth field counts bytes in mappings of their own, the eighth all others in use."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


def allocated() -> int:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    found = mallinfo2()
    return int(found.field4) + int(found.field7)


@pytest.fixture(params=["speaking", "gemma3"])
def folder(request: pytest.FixtureRequest, engines: Engines, speaking: Path) -> Path:
    """One KV group, and two with heads of another size; engines that other tests build as well."""
    if request.param == "speaking":
        return engines.engine(speaking)
    return engines.engine(engines.model("gemma3")[1], Scheme.INT8)


def test_the_plan_is_what_is_allocated(folder: Path) -> None:
    manifest = read_manifest(folder)
    arena = manifest.targets[0].memory.arena
    assert arena.constant and arena.per_token and arena.per_row and arena.per_thread
    for threads, max_batch, max_tokens in ((1, None, None), (3, None, 77), (2, 5, 33), (1, 1, 1)):
        with Engine.load(folder, threads=threads, max_batch=max_batch, max_tokens=max_tokens) as engine:
            device, limits = engine.device, engine.device.limits
            assert isinstance(device, CpuDevice)
            planned = arena.total(limits.max_tokens, limits.max_rows, threads)
            assert device.memory.arena_bytes == planned
    shorter = manifest.limits.max_seq_len // 2
    with Engine.load(folder, threads=4, max_seq_len=shorter) as engine:
        limits = engine.device.limits
        assert engine.device.memory.arena_bytes <= arena.total(limits.max_tokens, limits.max_rows, 4)


def test_the_library_takes_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of malloc itself, around llmc_create."""
    taken: list[int] = []
    original = CpuDevice.__init__

    def watched(self: CpuDevice, *given: Any) -> None:
        original(self, *given)
        library, engine = self._library, self._engine
        assert engine is not None
        before = allocated()
        library.llmc_destroy(engine)
        taken.append(before - allocated())
        self._engine = None

    monkeypatch.setattr(CpuDevice, "__init__", watched)
    for threads in (1, 4):
        Engine.load(folder, threads=threads).close()
        limits, arena = read_manifest(folder).limits, read_manifest(folder).targets[0].memory.arena
        planned = arena.total(limits.max_tokens, limits.max_batch, threads)
        assert planned <= taken[-1] < planned + (64 << 10), "the arena, the engine's struct, the threads"
