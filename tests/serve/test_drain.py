"""R14 over scripted engines and real connections: what a signal does, whatever is under way when it comes."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from llmc.serve.http.sockets import open_socket
from llmc.serve.options import ServeOptions
from llmc.serve.run import EXIT_DEAD, Signals, serve_process
from tests.serve.scripted import TEXT, ScriptedEngine, ScriptedProcess
from tests.serve.strict_sse import chat_chunks, content

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Running:
    """A server under way; `exit` is its code."""

    client: httpx.AsyncClient
    process: ScriptedProcess
    exit: asyncio.Task[int]
    signals: Signals = field(default_factory=Signals)

    async def ask(self, stream: bool) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    @property
    def engine(self) -> ScriptedEngine:
        return next(iter(self.process.engines.values()))


@asynccontextmanager
async def running(engine: ScriptedEngine, restart: bool = False) -> AsyncIterator[Running]:
    process, signals, listening = ScriptedProcess(engine), Signals(), open_socket("127.0.0.1", 0)

    async def load() -> ScriptedProcess:
        return process

    options = ServeOptions(["toy"], restart=restart, log_json=True)
    serving = asyncio.create_task(serve_process(load(), options, [], listening, signals, time.perf_counter()))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.005)
            yield Running(client, process, serving, signals)
            signals.first.set()
            await asyncio.wait_for(serving, 30)
    finally:
        serving.cancel()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in range(10, 100, 10))])
def test_what_is_under_way_finishes_and_what_is_new_is_refused(first: int) -> None:
    async def work(rng: random.Random) -> None:
        async with running(ScriptedEngine(step_seconds=0.001)) as one:
            asked = [asyncio.create_task(one.ask(stream)) for stream in (True, False, True)]
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            while len(one.engine.streams) < 4:  # three, and the warm-up
                await asyncio.sleep(0)
            one.engine.gate.clear()
            one.signals.came()
            await asyncio.sleep(0)
            refused = await one.ask(stream=False)
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert (await one.client.get("/ready")).status_code == 503
            one.engine.gate.set()
            streamed, whole, _ = await asyncio.gather(*asked)
            assert content(chat_chunks(streamed.content)) == TEXT
            assert whole.json()["choices"][0]["message"]["content"] == TEXT
            assert await one.exit == 0

    async def all_states() -> None:
        await asyncio.gather(*(work(random.Random(seed)) for seed in range(first, first + 10)))

    asyncio.run(all_states())


def test_a_second_signal_ends_streams_with_an_event() -> None:
    async def work() -> None:
        async with running(ScriptedEngine()) as one:
            one.engine.gate.clear()
            whole = asyncio.create_task(one.ask(stream=False))
            while len(one.engine.streams) < 2:
                await asyncio.sleep(0)
            one.engine.gate.set()
            request = one.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True})
            one.engine.step_seconds = 0.02
            async with request as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                one.signals.came()
                one.signals.came()
                rest = [line async for line in lines if line]
            assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "cancelled"
            assert (await whole).status_code in (200, 503)
            assert await one.exit == 0

    asyncio.run(work())


@pytest.mark.parametrize("draining", [False, True])
def test_engines_that_die_end_the_server(draining: bool) -> None:
    async def work() -> None:
        async with running(ScriptedEngine()) as one:
            one.engine.gate.clear()
            asked = asyncio.create_task(one.ask(stream=True))
            while len(one.engine.streams) < 2:
                await asyncio.sleep(0)
            if draining:
                one.signals.came()
                await asyncio.sleep(0)
            one.process.die()
            assert (await asked).status_code == 503
            assert await one.exit == EXIT_DEAD

    asyncio.run(work())


def test_with_restart_a_death_does_not_end_it() -> None:
    async def work() -> None:
        async with running(ScriptedEngine(), restart=True) as one:
            one.process.die()
            assert (await one.client.get("/health")).status_code == 503
            one.process.revive()
            assert (await one.client.get("/health")).status_code == 200
            assert (await one.ask(stream=False)).status_code == 200
            assert not one.exit.done()

    asyncio.run(work())


def test_a_signal_while_the_engines_load_is_heard() -> None:
    async def work() -> None:
        async def load() -> ScriptedProcess:
            await asyncio.Event().wait()
            raise AssertionError

        signals, listening = Signals(), open_socket("127.0.0.1", 0)
        signals.came()
        options = ServeOptions(["toy"], log_json=True)
        assert await serve_process(load(), options, [], listening, signals, time.perf_counter()) == 0

    asyncio.run(asyncio.wait_for(work(), 30))


def test_an_engine_that_answers_badly_is_never_ready() -> None:
    async def work() -> None:
        async def load() -> ScriptedProcess:
            return ScriptedProcess(ScriptedEngine(fault_after=0))

        listening = open_socket("127.0.0.1", 0)
        options = ServeOptions(["toy"], log_json=True)
        with pytest.raises(Exception, match="fails here"):
            await serve_process(load(), options, [], listening, Signals(), time.perf_counter())

    asyncio.run(asyncio.wait_for(work(), 30))
