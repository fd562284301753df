"""Rows R9, R10, R25 and R26: requests of every kind and client at once, over HTTP, from a pool too small for them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
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
            assert 400 <= one.status < 500, (one.status, one.visit, one.body)
        elif one.visit.manner is not Manner.LEAVES:
            assert one.status == 200, (one.status, one.body, one.visit)
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
    rng = random.Random(10)
    alone = Alone(folder)
    asked = questions(rng, 120, 256)
    with observed(folder, *pool(folder, BLOCKS)) as server:
        start = free_blocks(server.metrics())
        kinds = asyncio.run(soak(server, visits(rng, asked, 500), alone, start))
        found = server.metrics()
    alone.close()
    print(dict(kinds), {name: int(found[name]) for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total")})
    assert start == BLOCKS and found["vllm:num_preemptions_total"] > 0 and found["vllm:prefix_cache_hits_total"] > 0
