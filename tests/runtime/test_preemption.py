"""A request that has to give way again and again, and one that can never run: faults 61 and 56 of the design."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.errors import PromptTooLong
from llmc.runtime.loop.urgency import SPARED
from tests.runtime import reference_oracle as oracle

PROMPT = list(range(5, 60))
PARAMS = SamplingParams(
    temperature=1.1, seed=3, repetition_penalty=1.4, presence_penalty=0.3, max_tokens=40, ignore_eos=True, logprobs=2
)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_forced_preemptions_change_nothing(shared_engine: Path, prefix_cache: bool) -> None:
    """In the middle of its prompt and of its answer; then it is spared, and the urgent one waits."""
    with Engine.load(shared_engine, max_batch=1, max_tokens=16, prefix_cache=prefix_cache) as engine:
        handle = engine.submit(PROMPT, PARAMS, latency="batch")
        for steps in (2, 9, 20):
            for _ in range(steps):
                engine.step()
            engine.submit([1, 2], temperature=0.0, max_tokens=2, ignore_eos=True, latency="interactive").result()
        engine.step()
        late = engine.submit([1, 2], temperature=0.0, max_tokens=2, ignore_eos=True, latency="interactive")
        found = handle.result()
        assert found.num_preemptions == SPARED and late.completion is None
        late.result()
        tokens, logprobs = oracle.generate(PROMPT, PARAMS, 3, max_len=256)
        assert list(found.token_ids) == tokens and [one.logprob for one in found.logprobs] == logprobs


def test_what_can_never_run_is_refused_at_once_and_the_queue_is_untouched(shared_engine: Path) -> None:
    with Engine.load(shared_engine, kv_memory=20 * 64) as engine:  # 20 blocks of 4
        handles = [engine.submit([n] * 30, temperature=0.0, max_tokens=4) for n in range(6)]
        engine.step()
        scheduler = engine.core.scheduler
        before = (list(scheduler.waiting), scheduler.running, engine.num_free_blocks)
        with pytest.raises(PromptTooLong, match="100 tokens and needs 26 KV blocks; the pool has 20 of 4 tokens"):
            engine.submit([1] * 100)
        assert (list(scheduler.waiting), scheduler.running, engine.num_free_blocks) == before
        assert all(handle.result().error is None for handle in handles)
