"""Rows R12 and R18, and a thousand clients at once: what a server does that more is asked of than it can do."""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.engines import Engines
from tests.serve.soak.asking import ask
from tests.serve.soak.observed import free_blocks, observed, resident
from tests.serve.soak.questions import COMPLETIONS, Manner, Question, Visit
from tests.serve.wire import connected, post

pytestmark = pytest.mark.soak
CLIENTS = 1000
QUEUE, RUNNING = 256, 4
GREEDY = {"ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def folder(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking)


def visit(stream: bool, **body: object) -> Visit:
    return Visit(Question(COMPLETIONS, {**GREEDY, **body}), Manner.PATIENT, stream, 0.0)


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def test_a_thousand_clients_hold_and_all_end(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * CLIENTS)), hard))
    rng = random.Random(6)
    todo = [visit(rng.random() < 0.5, prompt=[n % 250, n // 250], max_tokens=16) for n in range(CLIENTS)]

    async def work(url: str) -> list[bool]:
        return [came.choices is not None for came in await asyncio.gather(*(ask(url, one) for one in todo))]

    with observed(folder, "--max-batch", str(RUNNING)) as server:
        start, began = free_blocks(server.metrics()), time.perf_counter()
        assert all(asyncio.run(work(server.url)))
        seconds = time.perf_counter() - began
        assert free_blocks(asyncio.run(server.idle())) == start
    print(f"{CLIENTS} clients at once, {RUNNING} running: all answered in {seconds:.1f} s")


def test_who_comes_to_a_full_queue_is_told_when_to_come_again(folder: Path) -> None:
    """R12: at several times what it holds; who was taken is answered."""
    asked = {**GREEDY, "prompt": [1], "max_tokens": 100, "n": 16}

    async def knock(url: str, refusals: list[float]) -> None:
        """Ask until taken, and be answered."""
        await asyncio.sleep(random.random())
        async with connected(url) as wire:
            while True:
                began = time.perf_counter()
                wire.send(post(COMPLETIONS, asked))
                if await wire.response() == 200:
                    return
                refusals.append(time.perf_counter() - began)
                assert wire.status == 429 and int(wire.headers["retry-after"]) >= 1, wire.body
                await asyncio.sleep(0.05)
                wire.begin()

    async def work(url: str) -> list[float]:
        refusals: list[float] = []
        await asyncio.gather(*(knock(url, refusals) for _ in range(4 * QUEUE // 16)))
        return refusals

    with observed(folder, "--max-batch", str(RUNNING), "--queue", str(QUEUE)) as server:
        seconds = asyncio.run(work(server.url))
        found = asyncio.run(server.idle())
    p50, p99 = percentile(seconds, 0.5) * 1000, percentile(seconds, 0.99) * 1000
    print(f"{4 * QUEUE} samples for a queue of {QUEUE}: {len(seconds)} refusals, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    assert found["llmc:engine_requests_finished_total"] >= 4 * QUEUE and len(seconds) > 20


def test_a_reader_who_takes_nothing_holds_nobody_up(folder: Path) -> None:
    """R18: the others' gaps, what is kept for him, and his end after a minute."""
    prompts = [[n, 4] for n in range(8)]  # 20 MB of answers, more than sockets hold
    asked = {**GREEDY, "prompt": prompts, "max_tokens": 120, "logprobs": 20, "n": 16, "stream": True}

    async def gaps(url: str) -> list[float]:
        """Between pieces of three streams, a few times."""

        async def one() -> list[float]:
            times = []
            async with connected(url) as wire:
                wire.send(post(COMPLETIONS, {**GREEDY, "prompt": [1, 2], "max_tokens": 120, "stream": True}))
                while await wire.read():
                    times.append(time.perf_counter())
                assert wire.complete
            return [after - before for before, after in itertools.pairwise(times[1:])]

        rounds = [await asyncio.gather(one(), one(), one()) for _ in range(12)]
        return [gap for found in rounds for stream in found for gap in stream]

    async def work(url: str) -> None:
        await gaps(url)
        alone = await gaps(url)
        async with connected(url, receive_buffer=2048) as wire:
            before = resident(server.one.process.pid)
            wire.send(post(COMPLETIONS, asked))
            began = time.perf_counter()
            await asyncio.sleep(3)  # all of his answer is computed
            beside, kept = await gaps(url), resident(server.one.process.pid) - before
            await asyncio.wait_for(server.idle(), 120)  # without his reading anything
            seconds = time.perf_counter() - began
        ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
        grown = f"the server grew by {kept / 2**20:.2f} MiB"
        print(f"p99 gap of the others {ratio:.2f}x, {grown}, he was cut off after {seconds:.0f} s")
        assert seconds > 30, "he was not slow for the server"

    with observed(folder) as server:
        asyncio.run(work(server.url))
