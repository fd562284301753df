"""Several answers to one prompt, against the oracle: which they are, which are chosen, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime import Completion, Engine, FinishReason, SamplingParams, SchedulingOptions
from llmc.runtime.errors import InvalidParameter, QueueFull, RequestError
from llmc.runtime.loop.results import Output
from tests.runtime import reference_oracle as oracle

PROMPT = list(range(40))
PARAMS = SamplingParams(temperature=1.3, seed=7, max_tokens=12, ignore_eos=True)


def answer(sample: int, params: SamplingParams = PARAMS) -> list[int]:
    assert params.seed is not None
    return oracle.generate(PROMPT, params, params.seed, eos=(), max_len=256, sample=sample)[0]


def total(completion: Completion) -> float:
    return sum(entry.logprob for entry in completion.logprobs)


def test_samples_are_those_of_the_seed_and_the_prompt_is_computed_once(engine: Engine) -> None:
    tokens: dict[int, list[int]] = {}
    handle = engine.samples(PROMPT, PARAMS, n=3)
    for output in handle:
        tokens.setdefault(output.sample, []).extend(output.token_ids)
    found = handle.result()
    assert [list(one.token_ids) for one in found] == [answer(sample) for sample in range(3)]
    assert tokens == {sample: answer(sample) for sample in range(3)}
    assert len({one.token_ids for one in found}) == 3
    assert engine.submit(PROMPT, PARAMS).result().token_ids == found[0].token_ids
    assert [one.num_cached for one in found] == [0, len(PROMPT) - 1, len(PROMPT) - 1]


def test_best_of_gives_back_the_likeliest(engine: Engine) -> None:
    drawn = engine.samples(PROMPT, PARAMS, n=6, logprobs=0).result()
    likeliest = sorted(drawn, key=total, reverse=True)
    found = engine.samples(PROMPT, PARAMS, n=2, best_of=6).result()
    assert [one.token_ids for one in found] == [one.token_ids for one in likeliest[:2]]
    assert all(one.logprobs == () for one in found), "nobody has asked for them"
    assert engine.generate([PROMPT, PROMPT[:5]], PARAMS, best_of=6)[0].token_ids == likeliest[0].token_ids


def test_a_scorer_chooses(engine: Engine) -> None:
    drawn = engine.samples(PROMPT, PARAMS, n=5).result()
    found = engine.generate([PROMPT], PARAMS, n=2, best_of=5, scorer=lambda one: -one.token_ids[3])
    assert [one.token_ids for one in found] == [
        one.token_ids for one in sorted(drawn, key=lambda one: one.token_ids[3])[:2]
    ]


@pytest.mark.parametrize("scorer", [lambda one: 1 / 0, lambda one: float("nan"), lambda one: "good"])
def test_a_scorer_that_fails_fails_its_request_alone(engine: Engine, scorer: Callable[[Completion], Any]) -> None:
    other = engine.submit(PROMPT, PARAMS)
    with pytest.raises(RequestError, match="scorer"):
        engine.samples(PROMPT, PARAMS, best_of=3, scorer=scorer).result()

    def half(one: Completion) -> float:
        return float(scorer(one)) if one.prompt_len == 4 else 0.0

    bad, good = engine.generate([PROMPT[:4], PROMPT], PARAMS, best_of=2, scorer=half)
    assert bad.finish_reason is FinishReason.ERROR and "scorer" in str(bad.error)
    assert good.error is None and list(good.token_ids) == answer(0)
    assert list(other.result().token_ids) == answer(0)


def test_samples_that_failed_are_chosen_last_and_never_scored(engine: Engine) -> None:
    seen: list[Completion] = []

    def explode(output: Output) -> None:
        if output.sample == 1:
            raise ValueError("no")

    def scorer(one: Completion) -> float:
        seen.append(one)
        return 0.0

    found = engine.samples(PROMPT, PARAMS, n=3, best_of=3, scorer=scorer, on_output=explode).result()
    assert [one.error is None for one in found] == [True, True, False] and len(seen) == 2


def test_they_are_queued_together_or_not_at_all(shared_engine: Path) -> None:
    with Engine.load(shared_engine, max_batch=2, scheduling=SchedulingOptions(max_queued=3)) as engine:
        first = engine.samples(PROMPT, PARAMS, n=3)
        with pytest.raises(QueueFull):
            engine.samples(PROMPT, PARAMS, n=3)
        assert len(engine._live) == 3
        # generate waits for room
        assert len(engine.generate([PROMPT] * 4, PARAMS, n=2)) == 8
        assert [list(one.token_ids) for one in first.result()] == [answer(sample) for sample in range(3)]


def test_cancelling_frees_the_blocks_of_all(engine: Engine) -> None:
    handle = engine.samples(PROMPT, PARAMS, n=4)
    engine.step()
    engine.step()
    handle.cancel()
    assert [one.finish_reason for one in handle.result()] == [FinishReason.CANCELLED] * 4
    assert not engine.step()


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 65}, {"n": 2, "best_of": 1}, {"n": True}, {"best_of": 1.5}])
def test_numbers_out_of_their_range_are_refused(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        engine.samples(PROMPT, PARAMS, **wrong)
    with pytest.raises(InvalidParameter):
        engine.generate([PROMPT], PARAMS, **wrong)
