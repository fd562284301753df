"""The commit one step late: the next step runs while the last one's tokens are dealt with, and nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime import Completion, Engine, FinishReason, SamplingParams
from llmc.runtime.artifact.artifact import open_artifact
from llmc.runtime.device.open_device import open_device
from llmc.runtime.device.protocol import LaunchingDevice
from llmc.runtime.errors import NonFiniteLogits, StepFailed
from llmc.runtime.loop.results import Output
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.text.tokenizer import Tokenizer
from tests.runtime import reference_oracle as oracle
from tests.runtime.late_device import LateDevice

STOPS = tuple(range(0, 250, 12))
CHOICES = [
    SamplingParams(temperature=1.0, max_tokens=40, logprobs=3, stop_token_ids=STOPS),
    SamplingParams(temperature=1.3, max_tokens=25, repetition_penalty=1.7, stop_token_ids=STOPS),
    SamplingParams(temperature=0.8, max_tokens=30, stop=tuple("abcdefghijklmnop"), ignore_eos=True),
    SamplingParams(temperature=2.0, max_tokens=40, min_tokens=9, stop_token_ids=STOPS, stop=("c",), logprobs=0),
    SamplingParams(temperature=1.0, max_tokens=1),
    SamplingParams(temperature=1.0, ignore_eos=True),  # to the end of the envelope
]


def late(folder: Path, seconds: float = 0.0, **options: Any) -> Engine:
    artifact = open_artifact(folder)
    device = open_device(artifact, LoadOptions(**options))
    slow = LateDevice(device, seconds)
    assert isinstance(slow, LaunchingDevice) and not isinstance(device, LaunchingDevice)

    return Engine(artifact, slow, device.limits.max_seqs, Tokenizer.load(artifact))


@pytest.fixture
def ahead(shared_engine: Path) -> Iterator[Engine]:
    with late(shared_engine) as engine:
        free = engine.num_free_blocks
        yield engine
        assert engine.num_free_blocks == free
        engine.check_integrity()


def log(engine: Engine) -> list[tuple[str, int]]:
    assert isinstance(engine.device, LateDevice)
    return engine.device.log


def facts(completion: Completion) -> dict[str, Any]:
    return {**vars(completion), "timing": None, "num_preemptions": None}


@pytest.mark.parametrize("options", [{}, {"max_tokens": 9}, {"kv_memory": 72 * 64, "max_seq_len": 120}], ids=str)
def test_answers_are_the_same_to_the_bit(shared_engine: Path, options: dict[str, Any]) -> None:
    """In any company, in chunks, preempted, with some cancelled midway."""
    rng = random.Random(3)
    prompts = [[rng.randrange(oracle.NUM_VALID) for _ in range(rng.randint(1, 60))] for _ in range(24)]
    params = [SamplingParams(**{**vars(CHOICES[i % len(CHOICES)]), "seed": i}) for i in range(24)]
    with Engine.load(shared_engine, **options) as engine:
        expected = engine.generate(prompts, params)
    with late(shared_engine, **options) as engine:
        free, doomed = engine.num_free_blocks, []
        handles = []
        for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            handles.append(engine.submit(prompt, one))
            if number % 3 == 0:
                doomed.append(engine.submit(prompt, one))
            engine.step()
            if number % 4 == 0:
                doomed[rng.randrange(len(doomed))].cancel()
                engine.check_integrity()
        found = [handle.result() for handle in handles]
        for handle in doomed:
            handle.cancel()
        assert [facts(one) for one in found] == [facts(one) for one in expected]
        if "kv_memory" in options:
            assert sum(one.num_preemptions for one in found) > 0
        while engine.step():
            pass
        assert engine.num_free_blocks == free
        engine.check_integrity()
    assert {one.finish_reason for one in expected} == {FinishReason.STOP, FinishReason.LENGTH}
    assert any(isinstance(one.stopped_by, str) for one in expected)


def test_tokens_are_told_while_the_next_step_runs(ahead: Engine) -> None:
    def told(output: Output) -> None:
        log(ahead).append(("told", len(output.token_ids)))

    ahead.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), on_output=told)
    log(ahead).clear()
    while ahead.step():
        pass
    kinds = [kind for kind, _ in log(ahead)]
    # the last token leaves nothing to be begun
    assert kinds == ["launch", "wait", "launch", "told", "wait", "launch", "told", "wait", "told"]


def test_a_stop_that_is_noticed_late_is_undone(ahead: Engine) -> None:
    """The step that was begun without knowing of it computes a token that nobody gets."""
    plain = ahead.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))[0]
    stop = plain.token_ids[4]
    log(ahead).clear()
    (completion,) = ahead.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=9, stop_token_ids=(stop,)))
    length = plain.token_ids.index(stop) + 1
    assert completion.token_ids == plain.token_ids[:length] and completion.stopped_by == stop
    assert log(ahead)[-1] == ("launch", log(ahead)[0][1] + length)
    assert not ahead.step() and log(ahead)[-1][0] == "wait"


def test_who_needs_the_token_first_is_decided_first(ahead: Engine) -> None:
    plain = ahead.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=9, presence_penalty=0.5))[0]
    stop = plain.token_ids[4]
    params = SamplingParams(temperature=0, max_tokens=9, presence_penalty=0.5, stop_token_ids=(stop,))
    assert params.penalises
    log(ahead).clear()
    (completion,) = ahead.generate([[1, 2]], params)
    length = plain.token_ids.index(stop) + 1
    assert len(completion.token_ids) == length
    assert [kind for kind, _ in log(ahead)] == ["launch", "wait"] * length


def test_scores_come_between(ahead: Engine) -> None:
    handle = ahead.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2))
    expected = ahead.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2))
    ids = list(range(30))
    with Engine.load(ahead.artifact.folder) as plain:
        alone = plain.score(ids).tolist()
    for _ in range(4):
        ahead.step()
        assert ahead.score(ids).tolist() == alone
    assert handle.result().logprobs == expected[0].logprobs


def test_a_poisoned_request_ends_alone(ahead: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    bad, good = ahead.generate([[3, oracle.POISON], [1, 2]], params)
    assert isinstance(bad.error, NonFiniteLogits) and good.error is None and len(good.token_ids) == 9


def test_a_step_that_fails_is_noticed_when_it_lands(ahead: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    expected = ahead.generate([[1, 2]], params)[0].token_ids
    handle = ahead.submit([1, 2], params)
    ahead.step()
    assert isinstance(ahead.device, LateDevice)
    with monkeypatch.context() as patch:
        patch.setattr(ahead.device._device, "decode", lambda step: (_ for _ in ()).throw(StepFailed("device fault")))
        with pytest.raises(StepFailed, match="device fault"):
            while True:
                ahead.step()
    assert isinstance(handle.result().error, StepFailed)
    assert ahead.generate([[1, 2]], params)[0].token_ids == expected


def test_an_interrupt_while_a_step_is_under_way(ahead: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    expected = ahead.generate([[1, 2]], params)[0].token_ids
    handles = [ahead.submit([n, 2], params) for n in range(3)]
    ahead.step()
    monkeypatch.setattr(ahead.core._commit, "decide", lambda chosen: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ahead.step()
    monkeypatch.undo()
    assert all(isinstance(handle.result().error, StepFailed) for handle in handles)
    assert ahead.generate([[1, 2]], params)[0].token_ids == expected


def test_closing_waits_for_what_is_under_way(shared_engine: Path) -> None:
    engine = late(shared_engine, seconds=0.05)
    handle = engine.submit([1, 2], max_tokens=9)
    engine.step()
    engine.close()
    assert handle.result().finish_reason is FinishReason.CANCELLED
    assert log(engine) == [("launch", 1), ("wait", 1)]


def test_who_ends_between_the_halves_gets_no_token(ahead: Engine) -> None:
    """A score has read the ids of the step under way; then the request is cancelled."""
    core, params = ahead.core, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    requests = [core.request([n, 7], params, 1) for n in (1, 2)]
    core.add(*requests)
    core.step()
    core.score([4, 5])
    core.finish(requests[0], FinishReason.CANCELLED)
    assert [event.request for event in core.step() or ()] == [requests[1]]
    core.finish(requests[1], FinishReason.CANCELLED)
