"""One engine of the child, without the process: what ends whom, and what is counted."""

from __future__ import annotations

import pytest

from llmc.runtime import Engine, FinishReason, SamplingParams
from llmc.runtime.errors import NonFiniteLogits, RequestError, StepFailed
from llmc.runtime.process.serving import Serving
from llmc.runtime.process.snapshot import snapshot
from llmc.runtime.process.wire import Row, Submission, pack_ids
from llmc.runtime.step.arrays import StepBuffers
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import IM_END

PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, seed=1)


def submission(key: int, ids: list[int], samples: int = 1) -> Submission:
    return Submission(key, pack_ids(ids), PARAMS, samples, "standard", 0, "", f"r{key}")


def tokens(rows: list[Row], key: int) -> list[int]:
    return [row.token for row in rows if row.key == key and row.token is not None]


def until_idle(serving: Serving) -> list[Row]:
    rows: list[Row] = []
    while not serving.idle:
        rows += serving.step()
        serving.score_chunk()
    return rows


def answer(ids: list[int]) -> list[int]:
    return oracle.generate(ids, PARAMS, 1, eos=(IM_END,), max_len=256)[0]


def test_a_step_that_fails_ends_those_of_its_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scores too; what is asked later is answered."""
    serving = Serving(engine.core)
    serving.submit(submission(1, [1, 2], samples=2))
    serving.submit(submission(2, [3]))
    serving.score(3, list(range(20)), 0)
    before = serving.step()
    assert serving.score_chunk() is not None
    with monkeypatch.context() as patch:

        def once(step: StepBuffers) -> None:
            patch.undo()
            raise StepFailed("device fault")

        for entry in ("prefill", "decode"):
            patch.setattr(engine.device, entry, once)
        failed = serving.step()
    assert [(row.key, row.sample, row.reason) for row in failed] == [
        (key, sample, FinishReason.ERROR) for key, sample in ((1, 0), (1, 1), (2, 0))
    ]
    assert all(isinstance(row.error, StepFailed) for row in failed) and before
    scored = serving.score_chunk()
    assert scored is not None and scored[0] == 3 and scored[2] and isinstance(scored[3], StepFailed)
    assert serving.idle
    engine.check_integrity()
    serving.submit(submission(4, [1, 2]))
    assert tokens(until_idle(serving), 4) == answer([1, 2])
    counts = snapshot(serving).counters
    assert (counts.started, counts.failed, counts.finished["length"]) == (4, 3, 1)


def test_an_exception_in_a_step_ends_those_of_its_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(engine.core)
    serving.submit(submission(1, [1, 2]))
    with monkeypatch.context() as patch:
        patch.setattr(engine.core.scheduler, "schedule", lambda: 1 / 0)
        (failed,) = serving.step()
    assert isinstance(failed.error, StepFailed) and "ZeroDivisionError" in str(failed.error)
    serving.submit(submission(2, [1, 2]))
    assert tokens(until_idle(serving), 2) == answer([1, 2])


def test_a_device_that_is_beyond_help_is_said_to_be(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(engine.core)
    serving.submit(submission(1, [1, 2]))
    for entry in ("prefill", "decode"):
        monkeypatch.setattr(engine.device, entry, lambda step: (_ for _ in ()).throw(StepFailed("the device is gone")))
    with pytest.raises(StepFailed, match="the device is gone"):
        serving.step()


def test_what_cannot_be_queued_fails_alone(engine: Engine) -> None:
    serving = Serving(engine.core)
    serving.submit(submission(1, [1, 2]))
    for ids in ([], [1] * 256, [oracle.VOCAB]):
        rows = serving.submit(submission(2, ids, samples=3))
        assert [row.sample for row in rows] == [0, 1, 2] and all(isinstance(row.error, RequestError) for row in rows)
    serving.submit(submission(3, [oracle.POISON]))
    serving.abort(99, FinishReason.CANCELLED)
    rows = until_idle(serving)
    assert tokens(rows, 1) == answer([1, 2])
    (poisoned,) = [row for row in rows if row.key == 3]
    assert isinstance(poisoned.error, NonFiniteLogits)
    counts = snapshot(serving).counters
    assert (counts.started, counts.failed, counts.finished["length"]) == (2, 1, 1)
    assert counts.prompt_tokens == 2 and counts.generated_tokens == 5


def test_an_aborted_sample_leaves_the_others(engine: Engine) -> None:
    serving = Serving(engine.core)
    serving.submit(submission(1, [1, 2], samples=3))
    serving.step()
    serving.abort(1, FinishReason.STOP, 1)
    assert {name for name in serving.requests} == {(1, 0), (1, 2)}
    assert {row.sample for row in until_idle(serving)} == {0, 2}
    counts = snapshot(serving).counters
    assert counts.finished == {"stop": 1, "length": 2} and counts.started == 3


def test_a_score_waits_for_blocks_and_does_not_hold_up_requests(engine: Engine) -> None:
    """In a pool that one sequence fills: the score comes when the request has gone, and the other way round."""
    blocks = engine.core.blocks
    serving = Serving(engine.core)
    table = blocks.allocate(0)
    assert table is not None
    while blocks.extend(table, table._promised + 4):
        pass
    serving.score(1, list(range(8)), 2)
    assert serving.score_chunk() == (1, [], False, None)
    blocks.free(table)
    chunk = serving.score_chunk()
    assert chunk is not None and len(chunk[1]) > 0
    serving.abort(1, FinishReason.CANCELLED)
    assert serving.idle
    engine.check_integrity()
