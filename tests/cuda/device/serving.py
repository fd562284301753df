"""Checks of the CUDA device under the loops that serve with it: one that runs ahead of its tokens, and one in a process
of its own (checks.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from llmc.runtime import Completion, Engine, EngineProcess, SamplingParams
from llmc.runtime.artifact.artifact import open_artifact
from llmc.runtime.cuda.device import CudaDevice
from llmc.runtime.device.protocol import LaunchingDevice
from llmc.runtime.step.limits import LoadOptions
from tests.cuda.device.checks import FOLDER, prompts, run
from tests.cuda.device.toy_engine import VALID
from tests.runtime.late_device import InLockstep

PROMPTS = prompts(12)
ASKED = [
    SamplingParams(
        temperature=30.0, seed=i, max_tokens=10, stop_token_ids=tuple(range(i % 4, VALID, 9)), logprobs=i % 3
    )
    if i % 3
    else SamplingParams(temperature=0, max_tokens=9, repetition_penalty=1.3, ignore_eos=True)
    for i in range(12)
]


def answers(found: Sequence[Completion]) -> list[tuple[object, ...]]:
    return [(one.token_ids, one.logprobs, one.finish_reason, one.stopped_by) for one in found]


def in_lockstep() -> list[tuple[object, ...]]:
    artifact = open_artifact(FOLDER / "toy")
    device = InLockstep(CudaDevice(artifact, LoadOptions()))
    assert not isinstance(device, LaunchingDevice)
    with Engine(artifact, device, device.limits.max_seqs, None) as engine:
        assert not engine.core._running.ahead
        return answers(engine.generate(PROMPTS, ASKED))


def late_and_in_lockstep_alike() -> None:
    """Stops that are noticed while the next step runs, penalties, chunks, preemption: the same bits."""
    expected = in_lockstep()
    choices: list[dict[str, Any]] = [{}, {"max_tokens": 7, "max_batch": 4}, {"kv_memory": 1 << 14}]
    for options in choices:
        with Engine.load(FOLDER / "toy", **options) as engine:
            assert engine.core._running.ahead
            free = engine.num_free_blocks
            assert answers(engine.generate(PROMPTS, ASKED)) == expected, options
            while engine.step():
                pass
            engine.check_integrity()
            assert engine.num_free_blocks == free


def in_a_process_of_its_own() -> None:
    """Which has the environment of this one, and so the same GPU."""

    async def work() -> list[Completion]:
        async with await EngineProcess.start({"toy": FOLDER / "toy"}) as process:
            assert process.engine.facts.device == "cuda"
            streams = [await process.engine.submit(p, q) for p, q in zip(PROMPTS, ASKED, strict=True)]
            return [(await stream.result())[0] for stream in streams]

    assert answers(asyncio.run(work())) == in_lockstep()


if __name__ == "__main__":
    run(globals())
