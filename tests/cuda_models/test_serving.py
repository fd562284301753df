"""A server over an emulated h100: requests of every kind at once, from a pool too small for them, as on a CPU
(tests/serve/soak). Each answer is the one that the same server gives it alone, under a salt that nothing shares."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.ir.formats import Scheme
from llmc.runtime.artifact.artifact import read_manifest
from tests.cuda_models.test_families import SMALL
from tests.e2e.engines import Engines
from tests.serve.soak.asking import Came, Crowd, ask
from tests.serve.soak.observed import free_blocks, observed
from tests.serve.soak.questions import Manner, Question, Visit, questions, visits

VOCAB, BLOCKS = 97, 5  # of each KV group: the longest sequence, and a quarter of another


async def under_load(url: str, todo: Sequence[Visit]) -> list[Came]:
    return await Crowd(url, 12).ask(todo)


async def alone(url: str, question: Question, number: int) -> Came:
    return await ask(url, Visit(replace(question, body={**question.body, "cache_salt": f"{number}"}), Manner.PATIENT))


@pytest.mark.parametrize(("family", "count"), [("qwen3", 40), pytest.param("gemma3", 600, marks=pytest.mark.soak)])
def test_answers_under_load(family: str, count: int, engines: Engines) -> None:
    folder = engines.engine(engines.model(family)[1], Scheme.BF16, target="h100", **SMALL)
    check(folder, count)


def check(folder: Path, count: int) -> None:
    rng = random.Random(count)
    memory = BLOCKS * sum(group.block_bytes for group in read_manifest(folder).targets[0].kv.groups)
    asked = questions(rng, count // 4, VOCAB, text=False, lengths=(31, 33))
    limits = ("--emulate", "--kv-memory", str(memory))
    with observed(folder, *limits, env={"LLMC_FAULT_POINTS": "integrity=1"}) as server:
        start = free_blocks(server.metrics())
        came = asyncio.run(under_load(server.url, visits(rng, asked, count)))
        found = asyncio.run(server.idle())
        assert free_blocks(found) == start
        finished = [one for one in came if one.choices is not None]
        known: dict[int, Came] = {}
        for number, one in enumerate(finished):
            question = one.visit.question
            if id(question) not in known:
                known[id(question)] = asyncio.run(alone(server.url, question, number))
            assert one.choices == known[id(question)].choices, one.visit
        assert all(400 <= one.status < 500 for one in came if one.visit.manner is Manner.WRONG)
    assert not any(one.error for one in came if one.visit.manner is not Manner.WRONG)
    preempted = int(found["vllm:num_preemptions_total"])
    print(f"{count} requests, {len(finished)} answered, {preempted} preempted; integrity clean, all blocks back")
    assert preempted > 0 and len(finished) > count / 3
