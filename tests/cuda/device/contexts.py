"""Checks that an engine leaves each thread the context it had, on a machine with two devices (checks.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from cuda.bindings import driver as cu

from llmc.runtime import Engine
from llmc.runtime.errors import ChecksumMismatch, StepFailed
from tests.cuda.device.checks import ASK, FOLDER, MODEL, loaded, prompts, refusal, run
from tests.cuda.driver.cuda_calls import alloc, download, ok, upload


def current() -> int:
    return int(ok(cu.cuCtxGetCurrent()))


@contextmanager
def owning(*devices: int) -> Iterator[None]:
    """A caller with a stack of contexts, of these devices, the last one current; seen whole at the end."""
    own = [ok(cu.cuDevicePrimaryCtxRetain(device)) for device in devices]
    for context in own:
        ok(cu.cuCtxPushCurrent(context))
    yield
    for context in reversed(own):
        assert int(ok(cu.cuCtxPopCurrent())) == int(context)
    assert current() == 0
    for device in devices:
        ok(cu.cuDevicePrimaryCtxRelease(device))


def use_an_engine() -> None:
    """Load, generate, score, close; a load that fails; a step that fails: the same context is current all along."""
    before = current()
    with loaded("toy") as engine:
        assert current() == before, "after the load"
        for prompt in prompts(3):
            assert list(engine.generate([prompt], max_tokens=3, **ASK)[0].token_ids) == MODEL.answer(prompt, 3)
            assert current() == before, "between calls"
        np.testing.assert_array_equal(engine.logits([7, 8]), MODEL.logits([7, 8]))
        assert current() == before, "after logits"
    assert current() == before, "after close"
    refusal(ChecksumMismatch, lambda: loaded("damaged").__enter__())
    assert current() == before, "after a load that failed"
    with loaded("too_much_shared") as engine:
        refusal(StepFailed, lambda: engine.generate([[1, 2]], max_tokens=1, **ASK))
        assert current() == before, "after a step that failed"
    assert current() == before


def in_threads(*actions: Callable[[], None]) -> None:
    """One after the other, each in a thread of its own; raises what one of them raised."""
    for action in actions:
        raised: list[BaseException] = []

        def body(action: Callable[[], None] = action, raised: list[BaseException] = raised) -> None:
            try:
                action()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]


def callers_keep_their_contexts() -> None:
    """Whether they have none, that of another device, that of the engine's own device, or several."""
    use_an_engine()

    def with_contexts(*devices: int) -> Callable[[], None]:
        def action() -> None:
            with owning(*devices):
                use_an_engine()

        return action

    in_threads(use_an_engine, *(with_contexts(*devices) for devices in ((1,), (0,), (0, 1), (1, 0, 1))))
    assert current() == 0


def one_engine_in_many_threads() -> None:
    """Each thread has its own context; the engine is used in all, and closed in the last."""
    (prompt,) = prompts(1)
    engine = Engine.load(FOLDER / "toy")

    def action(device: int | None) -> Callable[[], None]:
        def use() -> None:
            before = current()
            assert list(engine.generate([prompt], max_tokens=2, **ASK)[0].token_ids) == MODEL.answer(prompt, 2)
            assert current() == before

        def owned() -> None:
            if device is None:
                return use()
            with owning(device):
                use()

        return owned

    def close() -> None:
        with owning(1):
            engine.close()

    in_threads(action(None), action(0), action(1), close)
    assert current() == 0


def a_caller_s_memory_outlives_the_engine() -> None:
    """On the device, and so in the context, that the engine used; two engines at once as well."""
    ones = np.ones(64, np.float32)
    with owning(0):
        own = upload(ones)
        with loaded("toy") as first:
            with loaded("toy") as second:
                first.generate([[1]], max_tokens=1, **ASK)
                second.generate([[1]], max_tokens=1, **ASK)
            first.generate([[2]], max_tokens=1, **ASK)
            other = alloc(256)
        np.testing.assert_array_equal(download(own, (64,), np.float32), ones)
        for pointer in (own, other):
            ok(cu.cuMemFree(pointer))


if __name__ == "__main__":
    ok(cu.cuInit(0))
    run(globals())
