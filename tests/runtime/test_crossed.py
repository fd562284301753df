"""Features crossed: several answers, the prefix cache, salts, preemption, cancels, the commit one step late.

Each answer is the oracle's, at prompts that end around a block's end, and every block is free in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from llmc.runtime import Completion, Engine, FinishReason, SamplingParams
from tests.runtime import reference_oracle as oracle
from tests.runtime.test_late_commit import late

PARAMS = SamplingParams(temperature=1.2, seed=11, max_tokens=14, repetition_penalty=1.3, ignore_eos=True, logprobs=1)
HURRY = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
Load = Callable[..., Engine]


@pytest.fixture(params=[Engine.load, late], ids=["lockstep", "late"])
def load(request: pytest.FixtureRequest) -> Load:
    found: Load = request.param
    return found


def check(found: Completion, prompt: list[int], sample: int, params: SamplingParams = PARAMS) -> None:
    assert params.seed is not None
    tokens, logprobs = oracle.generate(prompt, params, params.seed, max_len=256, sample=sample)
    kept = len(found.token_ids)
    assert kept == len(tokens) or found.finish_reason is FinishReason.CANCELLED
    assert list(found.token_ids) == tokens[:kept]
    assert [one.logprob for one in found.logprobs] == logprobs[:kept]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 23, 24, 25])
def test_samples_with_salts_under_preemption(shared_engine: Path, load: Load, length: int) -> None:
    prompt = list(range(30, 30 + length))
    with load(shared_engine, kv_memory=26 * 64, max_tokens=8, max_batch=4) as engine:  # 26 blocks of 4
        free = engine.num_free_blocks
        groups = [engine.samples(prompt, PARAMS, n=3, salt=salt, latency="batch") for salt in ("a", "b", "a")]
        for _ in range(6):
            for _ in range(3):
                engine.step()
                engine.check_integrity()
            engine.submit([1, 2, 3, 4], HURRY, latency="interactive").result()
        for group in groups:
            for sample, found in enumerate(group.result()):
                check(found, prompt, sample)
        engine.check_integrity()
        assert engine.num_free_blocks == free and engine.core.scheduler.num_preemptions > 0


@pytest.mark.parametrize("seed", range(6))
def test_cancels_among_those_that_share(shared_engine: Path, load: Load, seed: int) -> None:
    """Also of who computes what others wait for, in the middle of it."""
    rng = random.Random(seed)
    prompt = list(range(40, 40 + rng.choice([31, 32, 33, 61])))
    with load(shared_engine, kv_memory=50 * 64, max_tokens=8, max_batch=5) as engine:
        free = engine.num_free_blocks
        single = [engine.submit(prompt[: rng.choice([len(prompt), 32])], PARAMS) for _ in range(4)]
        groups = [engine.samples(prompt, PARAMS, n=rng.randrange(2, 5)) for _ in range(2)]
        left = [one.cancel for one in single] + [one.cancel for one in groups]
        while left:
            for _ in range(rng.randrange(6)):
                engine.step()
            left.pop(rng.randrange(len(left)) if rng.random() < 0.5 else 0)()  # the oldest, often
            engine.check_integrity()
            if rng.random() < 0.2:
                break
        for handle in single:
            found = handle.result()
            check(found, prompt[: found.prompt_len], 0)
        for group in groups:
            for sample, found in enumerate(group.result()):
                check(found, prompt, sample)
        engine.check_integrity()
        assert engine.num_free_blocks == free


def test_nothing_is_kept_of_who_computed_nothing(engine: Engine) -> None:
    """The empty and the least: cancelled before a step, one token of each, as many as can be."""
    engine.samples([5], PARAMS, n=64).cancel()
    assert not engine.step()
    most = engine.samples([5], PARAMS, n=64, max_tokens=1).result()
    assert [one.finish_reason for one in most] == [FinishReason.LENGTH] * 64
    for sample, found in enumerate(most[:5]):
        check(found, [5], sample, SamplingParams(**{**vars(PARAMS), "max_tokens": 1}))
