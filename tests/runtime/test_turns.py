"""Calls that come in the middle of others, and exceptions that end one anywhere: the engine stays sound."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.errors import RequestError, StepFailed
from tests.runtime import reference_oracle as oracle
from tests.runtime.ended import ended

LONG = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
BLOCK_BYTES = 16 * oracle.BLOCK_TOKENS
BOOKKEEPING = {
    f"{os.sep}{name}.py" for name in ("engine", "core", "handle", "schedule", "waiting", "blocks", "commit", "delivery")
}


def test_a_signal_handler_is_refused_in_the_middle_of_a_step(engine: Engine) -> None:
    """It runs between two instructions of the thread that steps: what it changed there would be torn."""
    other = engine.submit([5], LONG)
    calls = (
        engine.step,
        other.cancel,
        engine.close,
        lambda: engine.submit([4], LONG),
        lambda: engine.score([4, 5]),
    )
    refused = []

    def handler(number: int, frame: FrameType | None) -> None:
        for call in calls:
            with pytest.raises(RequestError, match="in the middle of another call"):
                call()
            refused.append(call)

    decode = engine.device.decode

    def interrupted(step: Any) -> None:
        if not refused:
            signal.raise_signal(signal.SIGUSR1)
        decode(step)

    expected = engine.generate([[1, 2]], LONG)[0].token_ids
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with mock.patch.object(engine.device, "decode", interrupted):
            assert engine.generate([[1, 2]], LONG)[0].token_ids == expected
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == len(calls) and other.result().error is None


def test_a_step_does_not_come_between_the_halves_of_a_submit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    add, told = engine.core.scheduler.add, []

    def step() -> None:
        with pytest.raises(RequestError, match="another thread drives this engine"):
            engine.step()
        told.append(True)

    def slow(request: Any) -> None:
        add(request)
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    monkeypatch.setattr(engine.core.scheduler, "add", slow)
    assert engine.submit([1, 2], LONG).result().error is None and told == [True]


def test_a_callback_may_close(shared_engine: Path) -> None:
    engine = Engine.load(shared_engine)
    first = engine.submit([1, 2], LONG, on_output=lambda output: engine.close())
    second = engine.submit([3], LONG)
    engine.step()
    assert ended(first).finish_reason is ended(second).finish_reason is not None
    assert not engine.step()
    with pytest.raises(StepFailed, match="closed"):
        engine.logits([1, 2])


class Interrupt(BaseException):
    pass


def test_an_interrupt_of_the_recovery_is_recovered_from_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C twice: the next call finds what the first two have left."""
    handles = [engine.submit([n, n], LONG) for n in (1, 2)]

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(engine.device, "prefill", lambda step: 1 / 0)
    monkeypatch.setattr(engine.core.scheduler, "begin_anew", interrupt)
    with pytest.raises(Interrupt):
        engine.step()
    assert handles[0].completion is None
    later = engine.submit([3], LONG)
    assert all(isinstance(handle.result().error, StepFailed) for handle in handles)
    assert later.result().error is None


def interrupt_at(count: int) -> Callable[[FrameType, str, object], Any]:
    """A trace function that raises at the count-th line of the engine's bookkeeping."""
    left = [count]

    def at_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise Interrupt
        return at_line

    def at_call(frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        return at_line if "runtime" in name and any(name.endswith(own) for own in BOOKKEEPING) else None

    return at_call


def work(engine: Engine) -> None:
    """Everything that changes queues and blocks: a batch that preempts, a cancelled request, a score."""
    handles = [engine.submit([n, n + 1], LONG) for n in range(3)]
    engine.step()
    handles[0].cancel()
    engine.score([4, 5, 6])
    for handle in handles[1:]:
        handle.result()


def test_an_interrupt_anywhere_leaves_a_sound_engine(shared_engine: Path) -> None:
    """Whichever line of the bookkeeping it comes at, as Ctrl-C may: no block is lost or held twice, all answers end and
    later ones are right."""
    with Engine.load(shared_engine, kv_memory=8 * BLOCK_BYTES) as engine:
        expected = [done.token_ids for done in engine.generate([[1, 2], [3, 4, 5]], LONG)]
        free, interrupted, count = engine.num_free_blocks, True, 0
        while interrupted:
            count += 7  # a prime number, so that in the loops every line has its turn
            traced = sys.gettrace()
            sys.settrace(interrupt_at(count))
            try:
                work(engine)
                interrupted = False
            except Interrupt:
                pass
            finally:
                sys.settrace(traced)
            found = engine.generate([[1, 2], [3, 4, 5]], LONG)
            assert [done.token_ids for done in found] == expected, count
            assert not engine.step() and not engine._live, count
            engine.check_integrity()
            assert engine.num_free_blocks == free, count
    assert count > 1000
