"""Engines in a process of their own: answers are those of an engine in the caller's, whatever readers do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmc.runtime import Completion, Engine, FinishReason, SamplingParams
from llmc.runtime.errors import InvalidParameter, NonFiniteLogits, PromptTooLong, QueueFull, RequestError
from llmc.runtime.kv.prefix import MAX_SALT_CHARS
from llmc.runtime.loop.results import Output
from llmc.runtime.process.engine_process import EngineProcess
from llmc.runtime.process.stream import Stream
from llmc.runtime.process.watch import Watching
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.scheduling import SchedulingOptions
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import IM_END, MakeEngine
from tests.runtime.process.serving import engine, quiet, run, until

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
VARIED = [
    SamplingParams(temperature=0, max_tokens=20, logprobs=3),
    SamplingParams(temperature=0.8, max_tokens=30, seed=1, ignore_eos=True, stop=("a", "zq")),
    SamplingParams(temperature=1.3, top_k=20, max_tokens=22, seed=2**64 - 1, ignore_eos=True, logprobs=20),
    SamplingParams(temperature=0.7, frequency_penalty=0.9, max_tokens=15, seed=4, logit_bias={5: 3.5, 9: -100}),
    SamplingParams(temperature=2.0, max_tokens=40, min_tokens=30, seed=5, stop_token_ids=tuple(range(0, 250, 3))),
    SamplingParams(temperature=1.5, max_tokens=60, seed=6, stop=("e",), min_tokens=8),
]
PROMPTS = ["the thing", "other", "the", "thethe", "x" * 40, "é"]


def same(one: Completion, other: Completion) -> None:
    """But for how long it took, and what was found of it."""
    apart = {"timing": None, "seed": None, "num_cached": None}
    assert {**vars(one), **apart} == {**vars(other), **apart}


async def read(stream: Stream) -> tuple[list[Output], Completion]:
    outputs = [output async for output in stream]
    (completion,) = await stream.result()
    return outputs, completion


def test_answers_are_those_of_an_engine_in_this_process(shared_engine: Path) -> None:
    with Engine.load(shared_engine) as local:
        expected = local.generate(PROMPTS, VARIED)

    async def work() -> None:
        async with engine(shared_engine) as remote:
            streams = [await remote.submit(p, q) for p, q in zip(PROMPTS, VARIED, strict=True)]
            for stream, alone in zip(streams, expected, strict=True):
                outputs, completion = await read(stream)
                same(completion, alone)
                assert "".join(o.text for o in outputs) == completion.text
                assert tuple(t for o in outputs for t in o.token_ids) == completion.token_ids
                assert tuple(entry for o in outputs for entry in o.logprobs) == completion.logprobs
                assert [o.finish_reason for o in outputs[:-1]] == [None] * (len(outputs) - 1)
                assert outputs[-1].finish_reason is completion.finish_reason
                assert 0 < completion.timing.ttft <= completion.timing.total

    run(work)
    assert {one.finish_reason for one in expected} == {FinishReason.STOP, FinishReason.LENGTH}


def test_a_seed_that_is_drawn_is_told_and_gives_the_answer_again(shared_engine: Path) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True)
            (first,), (second,) = [await (await remote.submit([1, 2], params)).result() for _ in range(2)]
            assert first.seed != second.seed
            again = await remote.submit([1, 2], remote.sampling(params, seed=first.seed))
            same((await again.result())[0], first)

    run(work)


def test_samples_of_one_prompt(shared_engine: Path) -> None:
    params = SamplingParams(temperature=1, max_tokens=12, seed=3, ignore_eos=True)

    async def work() -> None:
        async with engine(shared_engine) as remote:
            stream = await remote.submit([1, 2, 3], params, n=4)
            outputs = [output async for output in stream]
            found = await stream.result()
            for index, completion in enumerate(found):
                mine = [output for output in outputs if output.sample == index]
                assert tuple(t for o in mine for t in o.token_ids) == completion.token_ids
                assert mine[-1].finish_reason is FinishReason.LENGTH
            same(found[0], (await (await remote.submit([1, 2, 3], params)).result())[0])
            assert len({completion.token_ids for completion in found}) == 4
            await quiet(remote)

    run(work)


def test_the_best_of_several_samples(shared_engine: Path) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=5, seed=3, ignore_eos=True)

    def bad(completion: Completion) -> float:
        raise ZeroDivisionError

    async def work() -> None:
        async with engine(shared_engine) as remote:
            every = await (await remote.submit([7], remote.sampling(params, logprobs=0), n=6)).result()
            value = {one.token_ids: sum(entry.logprob for entry in one.logprobs) for one in every}
            stream = await remote.submit([7], params, n=2, best_of=6)
            outputs = [output async for output in stream]
            best = await stream.result()
            assert [one.token_ids for one in best] == sorted(value, key=lambda ids: -value[ids])[:2]
            assert [output.token_ids for output in outputs] == [one.token_ids for one in best]
            assert [one.logprobs for one in best] == [(), ()]
            scored = await remote.submit([7], params, best_of=6, scorer=lambda one: -value[one.token_ids])
            assert (await scored.result())[0].token_ids == min(value, key=lambda ids: value[ids])
            with pytest.raises(RequestError, match="the scorer raised ZeroDivisionError"):
                await (await remote.submit([7], params, best_of=2, scorer=bad)).result()
            assert (await (await remote.submit([7], SHORT)).result())[0].error is None

    run(work)


@pytest.mark.parametrize("tokens", [0, 1, 30])
def test_a_cancelled_request_gives_its_blocks_back(shared_engine: Path, tokens: int) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            other = await remote.submit([9] * 5, SHORT)
            stream = await remote.submit(list(range(40)), LONG)
            seen = 0
            while seen < tokens:
                seen += len((await anext(stream)).token_ids)
            stream.cancel()
            stream.cancel()
            (completion,) = await stream.result()
            assert completion.finish_reason is FinishReason.CANCELLED and len(completion.token_ids) >= seen
            tokens_of_it, _ = oracle.generate(list(range(40)), LONG, 0, eos=(IM_END,), max_len=256)
            assert list(completion.token_ids) == tokens_of_it[: len(completion.token_ids)]
            assert [output async for output in stream][-1].finish_reason is FinishReason.CANCELLED
            assert (await other.result())[0].finish_reason is FinishReason.LENGTH
            assert (await quiet(remote)).counters.cancelled == 1

    run(work)


def test_a_stream_that_nobody_holds_is_cancelled(shared_engine: Path) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            submitted = asyncio.Event()

            async def reader() -> None:
                stream = await remote.submit([oracle.NAP] * 4, LONG)
                submitted.set()
                async for _ in stream:
                    pass

            task = asyncio.create_task(reader())
            await submitted.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
            gc.collect()
            assert (await quiet(remote)).counters.cancelled == 1

    run(work)


def test_a_slow_reader_gets_what_came_meanwhile_at_once(shared_engine: Path) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            stream = await remote.submit([1, 2], LONG)
            await until(lambda: remote.stats().counters.finished.get("length") == 1)
            outputs, completion = await read(stream)
            assert len(outputs) == 1 and outputs[0].token_ids == completion.token_ids

    run(work)


def test_a_reader_who_has_gone_to_sleep_is_cancelled(shared_engine: Path) -> None:
    """But not one who waits for the whole."""

    async def work() -> None:
        options, watching = LoadOptions(max_tokens=8), Watching(stall_limit=0.1)
        async with engine(shared_engine, options=options, watching=watching) as remote:
            asleep = await remote.submit([1], LONG)
            collected = await remote.submit([2], LONG)
            results = asyncio.create_task(collected.result())
            slow = await remote.submit(
                ([oracle.NAP] + [5] * 5) * 4, SHORT
            )  # a chunk, and a token of others, each 0.3 s
            await slow.result()
            assert (await asleep.result())[0].finish_reason is FinishReason.CANCELLED
            assert (await results)[0].finish_reason is FinishReason.LENGTH

    run(work)


def test_scores_are_those_of_an_engine_in_this_process(shared_engine: Path) -> None:
    ids = [int(i) % oracle.NUM_VALID for i in range(3, 600, 7)]
    with Engine.load(shared_engine) as local:
        expected = local.score(ids)

    async def work() -> None:
        async with engine(shared_engine) as remote:
            running = await remote.submit([1, 2], LONG)
            entries = await remote.score(ids, 3)
            assert [entry.token_id for entry in entries] == ids[1:]
            assert [entry.logprob for entry in entries] == expected.tolist()
            for at, entry in enumerate(entries[:20]):
                values = oracle.log_softmax(oracle.logits(ids[: at + 1])[: oracle.NUM_VALID])
                best = sorted(range(oracle.NUM_VALID), key=lambda i: (-values[i], i))[:3]
                assert [token for token, _ in entry.top] == best
            assert await remote.score([5]) == []
            with pytest.raises(NonFiniteLogits):
                await remote.score([1, oracle.POISON, 2, 3])
            task = asyncio.create_task(remote.score([oracle.NAP] * 2))
            await asyncio.sleep(0.05)
            task.cancel()
            await running.result()

    run(work)


def test_what_is_refused_is_refused_here(shared_engine: Path) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            longest = remote.facts.max_len
            wrong: Sequence[tuple[type[RequestError], object, dict[str, object]]] = [
                (PromptTooLong, [1] * longest, {}),
                (InvalidParameter, [], {}),
                (InvalidParameter, [1, -1], {}),
                (InvalidParameter, [oracle.VOCAB], {}),
                (InvalidParameter, b"x", {}),
                (InvalidParameter, "\ud800", {}),
                (InvalidParameter, [1], {"n": 0}),
                (InvalidParameter, [1], {"n": 3, "best_of": 2}),
                (InvalidParameter, [1], {"n": 65}),
                (InvalidParameter, [1], {"priority": 2**40}),
                (InvalidParameter, [1], {"request_id": 5}),
                (InvalidParameter, [1], {"request_id": "x" * 257}),
            ]
            for kind, prompt, options in wrong:
                with pytest.raises(kind):
                    await remote.submit(prompt, SHORT, **options)  # type: ignore[arg-type]
            with pytest.raises(InvalidParameter, match="logit_bias"):
                await remote.submit([1], SamplingParams(logit_bias={oracle.NUM_VALID: 1.0}))
            with pytest.raises(PromptTooLong):
                await remote.score([1] * (longest + 1))
            with pytest.raises(InvalidParameter, match="top"):
                await remote.score([1, 2], 21)
            stream = await remote.submit([1] * (longest - 1), SHORT, salt="x" * MAX_SALT_CHARS)
            assert len((await stream.result())[0].token_ids) == 1

    run(work)


def test_one_bad_request_ends_alone(shared_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            poisoned = await remote.submit([3, oracle.POISON], SHORT)
            torn = await remote.submit([4], SHORT)
            good = await remote.submit([1, 2], SHORT)
            monkeypatch.setattr(torn._answers.samples[0].answer, "accept", lambda *args: 1 / 0)
            assert isinstance((await poisoned.result())[0].error, NonFiniteLogits)
            assert "ZeroDivisionError" in str((await torn.result())[0].error)
            (completion,) = await good.result()
            assert list(completion.token_ids) == oracle.generate([1, 2], SHORT, 0, eos=(IM_END,), max_len=256)[0]

    run(work)


def test_two_engines_in_one_process(shared_engine: Path, make_engine: MakeEngine) -> None:
    folders = {"one": shared_engine, "two": make_engine(template=None)}

    async def work() -> None:
        async with await EngineProcess.start(folders) as process:
            assert [engine.facts.name for engine in process.engines.values()] == ["one", "two"]
            streams = [await process.engines[name].submit([1, 2], LONG) for name in ("one", "two", "one", "two")]
            results = [(await stream.result())[0] for stream in streams]
            for result in results[1:]:
                same(result, results[0])

    run(work)


def test_a_prefix_is_found_by_its_salt_alone(shared_engine: Path) -> None:
    async def work() -> None:
        async with engine(shared_engine) as remote:
            found = []
            for salt in ("mine", "mine", "yours"):
                stream = await remote.submit(list(range(40)), SHORT, salt=salt)
                ((completion),) = await stream.result()
                assert completion.num_cached == stream.num_cached
                found.append(stream.num_cached)
            assert found == [0, 39, 0]
            stream = await remote.submit([7] * 40, SHORT, n=3)
            await stream.result()
            assert stream.num_cached == 0

    run(work)


def test_a_full_queue_refuses_at_once(shared_engine: Path) -> None:
    """In the middle of a step as well; whoever is let in is answered, and room comes back."""
    options = LoadOptions(max_batch=2, scheduling=SchedulingOptions(max_queued=3, max_queued_tokens=20))

    async def work() -> None:
        async with engine(shared_engine, options=options) as remote:
            for _ in range(2):
                streams = [await remote.submit([oracle.NAP], SHORT) for _ in range(5)]
                with pytest.raises(QueueFull, match="5 requests run and wait") as caught:
                    await remote.submit([1], SHORT)
                assert caught.value.retry_after >= 1
                streams[4].cancel()
                streams[4] = await remote.submit([1], SHORT)
                for stream in streams:
                    assert (await stream.result())[0].finish_reason is FinishReason.LENGTH
            first = await remote.submit([1] * 60, SHORT)  # alone it waits for nobody
            with pytest.raises(QueueFull, match="60 prompt tokens"):
                await remote.submit([1], SHORT)
            await first.result()
            assert remote.stats().counters.refused == 3
            for name, value in (("latency", "soon"), ("salt", "x" * 1025)):
                with pytest.raises(InvalidParameter, match=name):
                    await remote.submit([1], SHORT, **{name: value})  # type: ignore[arg-type]

    run(work)
