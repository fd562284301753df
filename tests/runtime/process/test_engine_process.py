"""A process of engines that starts badly, dies, hangs, is told to stop, or loses its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmc.runtime import SamplingParams
from llmc.runtime.errors import (
    ChecksumMismatch,
    EngineGone,
    FileMismatch,
    InvalidParameter,
    NotAnEngine,
    NotEnoughMemory,
    RuntimeFailure,
)
from llmc.runtime.process.engine_process import EngineProcess
from llmc.runtime.process.protocol import State
from llmc.runtime.process.watch import Backoff, Watching
from llmc.runtime.step.limits import LoadOptions
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import IM_END, MakeEngine
from tests.runtime.process.serving import alive, files, run, until

SHORT = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
ANSWER = oracle.generate([1, 2], SHORT, 0, eos=(IM_END,), max_len=256)[0]


async def serves(process: EngineProcess) -> None:
    """A right answer."""
    (completion,) = await (await process.engine.submit([1, 2], SHORT)).result()
    assert list(completion.token_ids) == ANSWER


def test_a_process_that_is_killed_ends_its_streams(shared_engine: Path) -> None:
    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}) as process:
            await serves(process)
            streams = [await process.engine.submit([oracle.NAP] * 4, SHORT) for _ in range(3)]
            score = asyncio.create_task(process.engine.score([oracle.NAP] * 9))
            await asyncio.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.wait_for(process.died.wait(), 2)
            assert process.state is State.DEAD and process.cause == "it was ended by SIGKILL"
            for stream in streams:
                (completion,) = await stream.result()
                assert isinstance(completion.error, EngineGone) and "SIGKILL" in str(completion.error)
                assert [output.error for output in [output async for output in stream]] == [completion.error]
            for asked in (score, process.engine.submit([1], SHORT), process.engine.score([1, 2])):
                with pytest.raises(EngineGone, match="died"):
                    await asked
            assert not await process.drain()

    before = files()
    run(work)
    assert files() == before


def test_a_process_that_is_killed_is_followed_by_another(shared_engine: Path) -> None:
    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}, restart=True) as process:
            engine, first = process.engine, process.pid
            for _ in range(2):
                stream = await engine.submit([oracle.NAP] * 4, SHORT)
                os.kill(process.pid, signal.SIGKILL)
                assert isinstance((await stream.result())[0].error, EngineGone)
                await until(lambda: process.state is State.READY and not process.died.is_set())
                assert process.engine is engine and process.pid != first
                await serves(process)
            last = process.pid
        assert not alive(first) and not alive(last)

    before = files()
    run(work)
    assert files() == before


def test_pauses_before_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short after service, however often that ends; long while nothing can be loaded."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff, pauses = Backoff(), []
    for lived in (5.0, 1.0, 0.2, 60.0):
        now += lived
        backoff.died()
        pauses.append(backoff.pause())
        backoff.ready()
    assert pauses == [0.05, 0.05, 0.5, 0.05]
    backoff.died()
    assert [backoff.pause() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_step_that_hangs_is_found_with_its_stacks(shared_engine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}, watching=Watching(step_limit=0.5)) as process:
            stream = await process.engine.submit([5, oracle.STUCK], SHORT)
            (completion,) = await stream.result()
            assert isinstance(completion.error, EngineGone)
            assert process.cause == "a step took longer than 0.5 s" and not alive(process.pid)

    run(work)
    said = capfd.readouterr().err
    assert "died: a step took longer" in said and 'runtime/cpu/device.py", line' in said


def test_a_stopped_process_is_found_too(shared_engine: Path) -> None:
    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}, watching=Watching(step_limit=0.5)) as process:
            os.kill(process.pid, signal.SIGSTOP)
            await process.died.wait()
            assert not alive(process.pid)

    run(work)


def test_a_long_legal_step_is_no_alarm(shared_engine: Path) -> None:
    """Nor are many of them."""

    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}, watching=Watching(step_limit=1.5)) as process:
            assert Watching().limit([process.engine.facts]) >= 60
            for _ in range(2):
                stream = await process.engine.submit([oracle.NAP] * 4, SHORT)
                assert (await stream.result())[0].error is None
            assert process.state is State.READY

    run(work)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_all_are_the_parent_s(shared_engine: Path, number: signal.Signals) -> None:
    async def work() -> None:
        async with await EngineProcess.start({"m": shared_engine}) as process:
            assert os.getpgid(process.pid) == process.pid != os.getpgrp()
            os.kill(process.pid, number)
            await serves(process)

    run(work)


def test_draining_lets_what_runs_finish(shared_engine: Path) -> None:
    async def work() -> None:
        process = await EngineProcess.start({"m": shared_engine}, restart=True)
        streams = [await process.engine.submit([oracle.NAP, n], SHORT) for n in range(3)]
        drained = asyncio.create_task(process.drain())
        await until(lambda: process.state is State.DRAINING)
        with pytest.raises(EngineGone, match="takes no new requests"):
            await process.engine.submit([1], SHORT)
        assert await drained
        for n, stream in enumerate(streams):
            expected = oracle.generate([oracle.NAP, n], SHORT, 0, eos=(IM_END,), max_len=256)[0]
            assert list((await stream.result())[0].token_ids) == expected
        assert process.child_code == 0 and not process.died.is_set()

    run(work)


def test_draining_has_an_end(shared_engine: Path) -> None:
    async def work() -> None:
        process = await EngineProcess.start({"m": shared_engine})
        stream = await process.engine.submit([oracle.NAP] * 3, SHORT)
        assert not await process.drain(timeout=0.1)
        assert (await stream.result())[0].finish_reason.value == "cancelled"
        await process.close()

    run(work)


def nothing(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def damaged(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")


def no_library(folder: Path) -> None:
    (folder / "kernels/cpu/model.so").unlink()


@pytest.mark.parametrize(
    ("harm", "options", "kind"),
    [
        (nothing, LoadOptions(), NotAnEngine),
        (damaged, LoadOptions(), ChecksumMismatch),
        (no_library, LoadOptions(), FileMismatch),
        (lambda folder: None, LoadOptions(kv_memory=3), NotEnoughMemory),
        (lambda folder: None, LoadOptions(max_batch=0), InvalidParameter),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_bad_start_is_raised_here(
    make_engine: MakeEngine, harm: Callable[[Path], None], options: LoadOptions, kind: type[RuntimeFailure]
) -> None:
    folder = make_engine()
    harm(folder)

    async def work() -> None:
        with pytest.raises(kind) as caught:
            await EngineProcess.start({"m": folder}, options)
        assert type(caught.value) is kind and "\n" not in str(caught.value)

    before = files()
    run(work)
    assert files() == before


PARENT = """
import asyncio, os, signal, sys
from llmc.runtime.process.engine_process import EngineProcess
async def main():
    process = await EngineProcess.start({"m": sys.argv[1]})
    if sys.argv[2] == "busy":
        await process.engine.submit([int(sys.argv[3])])
        await asyncio.sleep(0.1)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_a_child_dies_with_its_parent(shared_engine: Path, state: str) -> None:
    """Even in the middle of a step that never ends."""
    command = [sys.executable, "-c", PARENT, str(shared_engine), state, str(oracle.STUCK)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    run(lambda: until(lambda: not alive(int(printed))))
