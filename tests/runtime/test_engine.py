"""The engine loop on the reference device: every answer equals the oracle's, whoever else is served."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.runtime import Engine, FinishReason, RequestHandle, SamplingParams
from llmc.runtime.errors import InvalidParameter, NonFiniteLogits, PromptTooLong, RequestError, StepFailed
from llmc.runtime.loop.results import Completion, Output
from tests.runtime import reference_oracle as oracle
from tests.runtime.ended import ended
from tests.runtime.engine_folders import IM_END, MakeEngine

VARIED = [
    SamplingParams(temperature=0, max_tokens=20, logprobs=3),
    SamplingParams(temperature=0, max_tokens=25, ignore_eos=True, logprobs=0, repetition_penalty=1.7),
    SamplingParams(temperature=0.8, max_tokens=30, seed=1, ignore_eos=True),
    SamplingParams(temperature=1.3, top_k=20, max_tokens=22, seed=2**64 - 1, ignore_eos=True, logprobs=20),
    SamplingParams(temperature=1.0, top_p=0.7, min_p=0.05, max_tokens=18, seed=3, presence_penalty=0.5),
    SamplingParams(temperature=0.7, frequency_penalty=0.9, max_tokens=15, seed=4, logit_bias={5: 3.5, 9: -100}),
    SamplingParams(temperature=2.0, max_tokens=40, min_tokens=30, seed=5, stop_token_ids=tuple(range(0, 250, 3))),
    SamplingParams(temperature=0, max_tokens=1),
]


def prompts_of(rng: random.Random, count: int, longest: int = 90) -> list[list[int]]:
    return [[rng.randrange(oracle.NUM_VALID) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def check(completion: Completion, prompt: Sequence[int], params: SamplingParams, max_len: int = 256) -> None:
    tokens, logprobs = oracle.generate(prompt, params, completion.seed, eos=(IM_END,), max_len=max_len)
    assert list(completion.token_ids) == tokens
    if params.logprobs is not None:
        assert [entry.logprob for entry in completion.logprobs] == logprobs
        assert all(len(entry.top) == params.logprobs for entry in completion.logprobs)
    stopped = completion.finish_reason is FinishReason.STOP
    assert stopped == (completion.stopped_by is not None and completion.stopped_by == tokens[-1])
    assert stopped or completion.finish_reason is FinishReason.LENGTH


def test_alone_in_a_batch_and_joining_give_the_same_answers(engine: Engine) -> None:
    prompts = prompts_of(random.Random(0), len(VARIED))
    alone = [engine.generate([p], q)[0] for p, q in zip(prompts, VARIED, strict=True)]
    for completion, prompt, params in zip(alone, prompts, VARIED, strict=True):
        check(completion, prompt, params)
    seeded = [q if q.seed is not None else engine.sampling(q, seed=a.seed) for q, a in zip(VARIED, alone, strict=True)]
    together = engine.generate(prompts, seeded)
    handles = []
    for prompt, params in zip(prompts, seeded, strict=True):
        handles.append(engine.submit(prompt, params))
        engine.step()
        engine.step()
    joining = [handle.result() for handle in handles]
    for a, b, c in zip(alone, together, joining, strict=True):
        assert a.token_ids == b.token_ids == c.token_ids
        assert a.text == b.text == c.text
        assert a.logprobs == b.logprobs == c.logprobs


@pytest.mark.parametrize("max_tokens", [8, 9, 17, 64])
def test_chunk_size_and_batch_size_do_not_matter(shared_engine: Path, max_tokens: int) -> None:
    prompts = prompts_of(random.Random(max_tokens), 12)
    params = [VARIED[i % len(VARIED)] for i in range(12)]
    with Engine.load(shared_engine, max_tokens=max_tokens, max_batch=8 if max_tokens > 8 else 3) as engine:
        for completion, prompt, q in zip(engine.generate(prompts, params), prompts, params, strict=True):
            check(completion, prompt, q)


def test_preempted_requests_answer_as_if_they_had_not_been(shared_engine: Path) -> None:
    rng = random.Random(7)
    prompts = prompts_of(rng, 16, longest=40)
    params = [SamplingParams(temperature=1, seed=i, max_tokens=40, ignore_eos=True, logprobs=2) for i in range(16)]
    with Engine.load(shared_engine, kv_memory=40 * 64) as engine:
        completions = engine.generate(prompts, params)
        assert sum(c.num_preemptions for c in completions) >= 3
        for completion, prompt, q in zip(completions, prompts, params, strict=True):
            check(completion, prompt, q)
        assert engine.num_free_blocks == 40


def test_the_answer_ends_at_the_envelope_and_at_the_pool(shared_engine: Path) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True)
    with Engine.load(shared_engine, max_seq_len=50) as engine:
        (completion,) = engine.generate([[1, 2, 3]], params)
        assert completion.finish_reason is FinishReason.LENGTH and len(completion.token_ids) == 47
        assert len(engine.generate([[1] * 49], params)[0].token_ids) == 1
        with pytest.raises(PromptTooLong, match=r"50 tokens.*max_seq_len is 50"):
            engine.generate([[1] * 50], params)
    with Engine.load(shared_engine, kv_memory=5 * 64 + 63) as engine:
        (completion,) = engine.generate([[1, 2, 3]], params)
        assert completion.finish_reason is FinishReason.LENGTH and len(completion.token_ids) == 17
        with pytest.raises(PromptTooLong, match=r"25 KV blocks.*pool has 5 of 4"):
            engine.submit([1] * 99, params)


def test_streamed_outputs_join_to_the_completion(engine: Engine) -> None:
    handle = engine.submit("the thing", temperature=1.5, seed=11, max_tokens=60, ignore_eos=True, logprobs=1)
    outputs = list(handle)
    completion = ended(handle)
    assert "".join(o.text for o in outputs) == completion.text
    assert tuple(t for o in outputs for t in o.token_ids) == completion.token_ids
    assert tuple(entry for o in outputs for entry in o.logprobs) == completion.logprobs
    assert [o.finish_reason for o in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is completion.finish_reason
    assert engine.tokenizer is not None and completion.text == engine.tokenizer.decode(completion.token_ids)
    assert 0 < completion.timing.ttft <= completion.timing.total


def test_one_poisoned_request_fails_and_the_others_do_not_notice(engine: Engine) -> None:
    prompts = [[1, 2], [3, oracle.POISON, 4], [5, 6, 7]]
    params = SamplingParams(temperature=0, max_tokens=9)
    first, bad, last = engine.generate(prompts, params)
    check(first, prompts[0], params)
    check(last, prompts[2], params)
    assert bad.finish_reason is FinishReason.ERROR and isinstance(bad.error, NonFiniteLogits)
    assert bad.token_ids == ()


def test_a_raising_callback_ends_its_own_request_only(engine: Engine) -> None:
    seen = []

    def explode(output: Output) -> None:
        seen.append(output)
        if len(seen) == 3:
            raise RuntimeError("no space left")

    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    bad = engine.submit([1, 2, 3], params, on_output=explode)
    good = engine.submit([4, 5], params)
    check(good.result(), [4, 5], params)
    assert ended(bad).finish_reason is FinishReason.ERROR
    assert isinstance(ended(bad).error, RequestError) and "no space left" in str(ended(bad).error)
    assert len(seen) == 3


def test_a_fault_in_the_text_side_ends_one_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    bad, good = engine.submit([1, 2, 3], params), engine.submit([4, 5], params)
    monkeypatch.setattr(bad._live.answer, "accept", lambda *args: 1 / 0)
    check(good.result(), [4, 5], params)
    assert "ZeroDivisionError" in str(ended(bad).error)


def test_a_callback_may_cancel_another_request(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    victims: list[RequestHandle] = []
    killer = engine.submit([1], params, on_output=lambda output: victims[0].cancel())
    victims.append(engine.submit([2], params))
    check(killer.result(), [1], params)
    assert ended(victims[0]).finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("steps", range(0, 14))
def test_cancelling_at_any_moment_frees_the_blocks(shared_engine: Path, steps: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with Engine.load(shared_engine, max_tokens=8) as engine:
        free = engine.num_free_blocks
        other = engine.submit([9] * 5, params)
        handle = engine.submit(list(range(40)), params)
        for _ in range(steps):
            engine.step()
        handle.cancel()
        handle.cancel()
        engine.check_integrity()
        assert ended(handle).finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
        assert list(handle)[-1].finish_reason is ended(handle).finish_reason
        check(other.result(), [9] * 5, params)
        assert engine.num_free_blocks == free
        assert not engine.step()


def test_stop_strings_cut_across_tokens(engine: Engine) -> None:
    params = engine.sampling(temperature=0, max_tokens=30, ignore_eos=True)
    text = engine.generate(["a"], params)[0].text
    stop = text[7:10]
    at = text.index(stop)
    handle = engine.submit("a", params, stop=("never there", stop))
    pieces = [output.text for output in handle]
    assert "".join(pieces) == ended(handle).text == text[:at]
    assert ended(handle).finish_reason is FinishReason.STOP and ended(handle).stopped_by == stop


def test_min_tokens_holds_off_every_kind_of_stop(engine: Engine) -> None:
    plain = engine.generate(["a"], temperature=0, max_tokens=30, ignore_eos=True)[0]
    early = plain.token_ids[2]
    held = engine.generate(["a"], temperature=0, max_tokens=30, min_tokens=10, stop_token_ids=(early,))[0]
    assert early not in held.token_ids[:10] and len(held.token_ids) >= 10
    stop = plain.text[1]
    held = engine.generate(["a"], temperature=0, max_tokens=30, min_tokens=10, ignore_eos=True, stop=stop)[0]
    assert held.token_ids[:10] == plain.token_ids[:10]


def test_model_defaults_are_greedy_unless_the_model_samples(make_engine: MakeEngine) -> None:
    from llmc.runtime.artifact.manifest import GenerationDefaults

    with Engine.load(make_engine()) as engine:
        assert engine.sampling().temperature == 0
        assert engine.sampling(temperature=0.5).temperature == 0.5
    sampled = GenerationDefaults(do_sample=True, temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1)
    with Engine.load(make_engine("sampling", generation=sampled)) as engine:
        params = engine.sampling(top_k=0)
        assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 0, 0.9, 1.1)
        first, second = (engine.generate([[1, 2]], max_tokens=20)[0] for _ in range(2))
        assert first.seed != second.seed
        check(first, [1, 2], engine.sampling(max_tokens=20))
        again = engine.generate([[1, 2]], max_tokens=20, seed=first.seed)[0]
        assert again.token_ids == first.token_ids


def test_logits_while_others_decode(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    handle = engine.submit([1, 2, 3], params)
    for _ in range(4):
        engine.step()
        np.testing.assert_array_equal(engine.logits([7, 8], rows=[1])[0], oracle.logits([7, 8]))
    check(handle.result(), [1, 2, 3], params)


def test_a_failed_step_fails_its_requests_and_leaves_a_sound_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    handle = engine.submit([1, 2], params)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.device), "_run", lambda *args: (_ for _ in ()).throw(StepFailed("device fault")))
        with pytest.raises(StepFailed):
            engine.step()
    assert ended(handle).finish_reason is FinishReason.ERROR and len(ended(handle).token_ids) == 1
    check(engine.generate([[1, 2]], params)[0], [1, 2], params)


def test_closing_ends_what_runs(shared_engine: Path) -> None:
    engine = Engine.load(shared_engine)
    handle = engine.submit([1, 2], max_tokens=9)
    engine.step()
    engine.close()
    engine.close()
    assert handle.result().finish_reason is FinishReason.CANCELLED


def test_random_traffic_is_right_and_leaks_nothing(shared_engine: Path) -> None:
    rng = random.Random(42)
    with Engine.load(shared_engine, kv_memory=60 * 64, max_tokens=16) as engine:
        live = []
        for _ in range(150):
            if rng.random() < 0.5:
                prompt = prompts_of(rng, 1, longest=60)[0]
                params = rng.choice(VARIED)
                live.append((engine.submit(prompt, params), prompt, params, rng.random() < 0.3))
            for handle, _, _, doomed in live:
                if doomed and rng.random() < 0.1:
                    handle.cancel()
            engine.step()
            engine.check_integrity()
        for handle, prompt, params, _ in live:
            completion = handle.result()
            if completion.finish_reason is not FinishReason.CANCELLED:
                check(completion, prompt, params)
        assert engine.num_free_blocks == 60


def test_an_interrupt_inside_a_step_ends_every_request_and_leaves_a_sound_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    handles = [engine.submit([n, n + 1], params) for n in range(12)]
    engine.step()
    monkeypatch.setattr(handles[3]._live.answer, "accept", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    for handle in handles:
        assert isinstance(handle.result().error, StepFailed)
    check(engine.generate([[1, 2]], params)[0], [1, 2], params)


def test_callbacks_that_interrupt_again_when_told_leave_no_request_behind(engine: Engine) -> None:
    def interrupt(output: Output) -> None:
        raise KeyboardInterrupt

    bad = [engine.submit([n], on_output=interrupt) for n in (1, 2)]
    good = engine.submit([3], temperature=0, max_tokens=9)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    for handle in (*bad, good):
        assert handle.completion is not None and isinstance(ended(handle).error, StepFailed)
    assert not engine.step()
    engine.check_integrity()
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    check(engine.generate([[1, 2]], params)[0], [1, 2], params)


def test_a_callback_cannot_drive_the_engine(engine: Engine) -> None:
    def drive(output: Output) -> None:
        engine.step()

    bad = engine.submit([1], temperature=0, max_tokens=3, on_output=drive)
    good = engine.submit([2], temperature=0, max_tokens=3)
    good.result()
    assert "inside an output callback" in str(ended(bad).error)


@pytest.mark.parametrize("call", ["logits", "score"])
def test_a_callback_cannot_score(engine: Engine, call: str) -> None:
    """It would overwrite what the step's other rows have not been read from yet."""
    bad = engine.submit([1], temperature=0, max_tokens=3, on_output=lambda output: getattr(engine, call)([1, 2]))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    good = engine.submit([1, 2], params)
    check(good.result(), [1, 2], params)
    assert "inside an output callback" in str(ended(bad).error)


@pytest.mark.parametrize("prompts", [None, iter([[1]]), "text"], ids=lambda p: type(p).__name__)
def test_prompts_that_are_no_list_are_refused(engine: Engine, prompts: Any) -> None:
    with pytest.raises(InvalidParameter, match="prompts is a list"):
        engine.generate(prompts)


def test_a_second_thread_is_refused_and_harms_nothing(engine: Engine) -> None:
    """It comes in the middle of a step; whatever it calls, what runs is as if it had not come."""
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    second = engine.submit([3], params)
    refused = []

    def intrude() -> None:
        calls = (
            engine.step,
            second.result,
            second.cancel,
            engine.close,
            lambda: engine.submit([4], params),
            lambda: engine.generate([[4]], params),
            lambda: engine.logits([4]),
            lambda: engine.score([4, 5]),
        )
        for call in calls:
            with pytest.raises(RequestError, match="another thread drives this engine"):
                call()
            refused.append(call)

    def meanwhile(output: Output) -> None:
        if not refused:
            thread = threading.Thread(target=intrude)
            thread.start()
            thread.join()

    first = engine.submit([1, 2], params, on_output=meanwhile)
    check(first.result(), [1, 2], params)
    check(second.result(), [3], params)
    assert len(refused) == 8
    engine.check_integrity()
    done = []
    thread = threading.Thread(target=lambda: done.extend(engine.generate([[1, 2]], params)))
    thread.start()
    thread.join()
    check(done[0], [1, 2], params)  # between steps any thread may come


def test_a_fork_is_told_that_the_engine_is_not_its_own(shared_engine: Path) -> None:
    """Its threads stayed with the parent: a step would wait for them for ever."""
    with Engine.load(shared_engine, threads=2) as engine:
        engine.generate([[1, 2]], max_tokens=2)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                engine.generate([[1, 2]], max_tokens=2)
            except StepFailed as error:
                engine.close()
                code = 0 if "a fork has none of its threads" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert engine.generate([[1, 2]], max_tokens=2)[0].error is None
