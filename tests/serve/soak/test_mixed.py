"""Rows R9, R10, R25 and R26: requests of every kind and client at once, over HTTP, from a pool too small for them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.runtime.artifact.artifact import read_manifest
from tests.e2e.engines import Engines
from tests.serve.soak.alone import Alone
from tests.serve.soak.asking import Came, Crowd
from tests.serve.soak.observed import Observed, free_blocks, observed
from tests.serve.soak.questions import Manner, Visit, questions, visits

IN_FLIGHT = 64
BLOCKS = 14  # of 32 tokens: three and a half of the longest sequences
ROUNDS = 10
VOCAB = 256


@pytest.fixture(scope="module")
def folder(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking)


def pool(folder: Path, blocks: int) -> tuple[str, str]:
    (target,) = read_manifest(folder).targets
    return "--kv-memory", str(blocks * sum(group.block_bytes for group in target.kv.groups))


def check(came: Sequence[Came], alone: Alone) -> Counter[str]:
    """Every answer that finished is the one that its question has alone; what was wrong was refused as such."""
    kinds: Counter[str] = Counter()
    for one in came:
        kinds[one.visit.manner.value] += 1
        if one.visit.manner is Manner.WRONG:
            assert 400 <= one.status < 500, (one.status, one.visit)
        elif one.visit.manner is not Manner.LEAVES:
            assert not one.error, (one.status, one.error, one.visit)
            expected = alone.answer(one.visit.question)
            assert one.choices == expected, f"{one.visit}\n{one.choices}\n{expected}"
            kinds["answers"] += len(expected)
    return kinds


async def soak(server: Observed, todo: list[Visit], alone: Alone, free: float) -> Counter[str]:
    came = await Crowd(server.url, IN_FLIGHT).ask(todo)
    found = await server.idle()
    assert free_blocks(found) == free, found
    assert len(came) == len(todo)
    return check(came, alone)


def test_500_requests(folder: Path) -> None:
    """Queues and blocks agree after every step."""
    rng, alone = random.Random(10), Alone(folder)
    asked = questions(rng, 120, VOCAB)
    with observed(folder, *pool(folder, BLOCKS), env={"LLMC_FAULT_POINTS": "integrity=1"}) as server:
        start = free_blocks(server.metrics())
        kinds = asyncio.run(soak(server, visits(rng, asked, 500), alone, start))
        found = server.metrics()
    alone.close()
    shown = {name: int(found[name]) for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total")}
    print(dict(kinds), shown)
    assert start == BLOCKS and all(shown.values()), "nothing was preempted, or nothing found in the cache"


def test_only_the_request_that_a_fault_hits_fails(folder: Path) -> None:
    """R17: where requests are queued, where tokens become text, and where answers are written."""
    rng, alone = random.Random(17), Alone(folder)
    come = [one for one in visits(rng, questions(rng, 30, VOCAB), 150) if one.manner is not Manner.WRONG]
    todo = [replace(one, manner=Manner.PATIENT) for one in come if not one.question.scores]
    with observed(folder, env={"LLMC_FAULT_POINTS": "submit=9,text=90,stream=80,integrity=1"}, faults=True) as server:
        start = free_blocks(server.metrics())
        came = asyncio.run(Crowd(server.url, IN_FLIGHT).ask(todo))
        assert free_blocks(asyncio.run(server.idle())) == start
    failed = [one for one in came if one.error]
    where = Counter(word for one in failed for word in ("queued", "handling a token", "internal") if word in one.error)
    assert all(one.status in (200, 500) for one in failed)
    assert where["queued"] == (1 + len(todo)) // 9 and sum(where.values()) == len(failed) and len(where) == 3, where
    check([one for one in came if not one.error], alone)
    alone.close()
    print(len(came), dict(where))


@pytest.mark.soak
def test_10000_requests_leave_nothing_behind(folder: Path) -> None:
    """R9: after the first half, what the processes hold grows no more."""
    rng, alone = random.Random(9), Alone(folder)
    asked = questions(rng, 600, VOCAB)
    total: Counter[str] = Counter()
    with observed(folder, *pool(folder, BLOCKS)) as server:
        start, held = free_blocks(server.metrics()), []
        for _ in range(ROUNDS):
            total += asyncio.run(soak(server, visits(rng, asked, 10_000 // ROUNDS), alone, start))
            held.append(server.held())
            print(held[-1], flush=True)
    alone.close()
    half, last = held[ROUNDS // 2 - 1], held[-1]
    growth = [100 * (after / before - 1) for before, after in zip(half.bytes, last.bytes, strict=True)]
    print(dict(total), f"server {growth[0]:+.2f} %, engine {growth[1]:+.2f} % in the last half")
    assert max(growth) <= 2 and half.files == last.files and half.threads == last.threads
