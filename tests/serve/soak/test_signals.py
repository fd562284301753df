"""Rows R14 and R15: servers that are told to leave, and engines that are killed, at random moments under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.engines import Engines
from tests.serve.serving import HANG, served
from tests.serve.soak.asking import Came, ask
from tests.serve.soak.questions import COMPLETIONS, Manner, Question, Visit

pytestmark = pytest.mark.soak
KILLS, DRAINS = 50, 100
STREAMS = 8


@pytest.fixture(scope="module")
def folder(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking)


def long_visits(rng: random.Random) -> list[Visit]:
    body = {"prompt": [5, 6, 7], "max_tokens": 120, "ignore_eos": True, "temperature": 0, "n": 16}
    return [Visit(Question(COMPLETIONS, body), Manner.PATIENT, rng.random() < 0.7, 0.0) for _ in range(STREAMS)]


async def kill(url: str, child: int, rng: random.Random) -> tuple[float, list[Came]]:
    """Seconds from the death to the last client's hearing of it, and what they heard."""
    asked = [asyncio.create_task(ask(url, visit)) for visit in long_visits(rng)]
    await asyncio.sleep(0.02 + rng.random() * 0.3)
    began = time.perf_counter()
    os.kill(child, signal.SIGKILL)
    came = await asyncio.gather(*asked)
    return time.perf_counter() - began, came


def test_killed_engines_are_told_of(folder: Path) -> None:
    """R15: in two seconds, and the server ends with another code than 0."""
    rng, slowest, cut = random.Random(15), 0.0, 0
    for _ in range(KILLS):
        with served(folder, "--max-batch", "4") as one:
            seconds, came = asyncio.run(kill(one.url, one.child, rng))
            assert all((one.choices is not None) != ("SIGKILL" in one.error) for one in came), came
            cut, slowest = cut + sum(one.choices is None for one in came), max(slowest, seconds)
            assert one.process.wait(HANG) == 1
    print(f"{KILLS} kills: {cut} of {KILLS * STREAMS} answers cut, all told within {slowest * 1000:.0f} ms")
    assert cut and slowest <= 2


async def drain(url: str, pid: int, rng: random.Random, hurry: bool) -> tuple[float, list[Came]]:
    """Seconds until it says that it takes no more, and what came of those who had asked before."""
    async with httpx.AsyncClient(base_url=url, timeout=HANG) as client:
        await client.get("/ready")
        asked = [asyncio.create_task(ask(url, visit)) for visit in long_visits(rng)]
        await asyncio.sleep(0.02 + rng.random() * 0.3)
        began = time.perf_counter()
        os.kill(pid, signal.SIGTERM)
        await _not_ready(client)
        seconds = time.perf_counter() - began
        if hurry:
            os.kill(pid, signal.SIGTERM)
        return seconds, await asyncio.gather(*asked)


async def _not_ready(client: httpx.AsyncClient) -> None:
    """It says so, or is gone already."""
    with contextlib.suppress(httpx.TransportError):
        while (await client.get("/ready")).status_code != 503:
            pass


def test_servers_that_are_told_to_leave(folder: Path) -> None:
    """R14: what is under way finishes; a second signal ends it with an error that says so. Exit code 0 either way."""
    rng, slowest, late, cut = random.Random(14), 0.0, 0, 0
    for number in range(DRAINS):
        hurry = number % 4 == 3
        with served(folder, "--max-batch", "4") as one:
            seconds, came = asyncio.run(drain(one.url, one.process.pid, rng, hurry))
            assert one.process.wait(HANG) == 0
        slowest = max(slowest, seconds)
        for answer in came:
            if "shutting down" in answer.error:  # the request came after the signal
                late += 1
            elif answer.choices is None:
                assert hurry and "cancelled" in answer.error, answer
                cut += 1
    print(f"{DRAINS} drains: not ready within {slowest * 1000:.0f} ms, exit 0; of {DRAINS * STREAMS} answers")
    print(f"{cut} were cut off by second signals, {late} refused, the others finished")
    assert cut and late < DRAINS * STREAMS / 4 and slowest <= 1
