"""Answers that do not end by themselves: a client goes, an engine refuses, fails or dies, the server drains."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llmc.runtime.errors import PromptTooLong, QueueFull
from llmc.runtime.loop.request import FinishReason
from tests.serve.application import CHAT, HI, STREAM, run
from tests.serve.asgi import Call, Client
from tests.serve.scripted import MAX_LEN, ScriptedEngine, says


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_a_client_that_goes_away_cancels_within_two_steps(body: dict[str, Any]) -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(script=lambda prompt, sample: [5] * 200, step_seconds=0.002))
        call = Call(client.app, "POST", "/v1/chat/completions", json.dumps(body).encode())
        running = asyncio.create_task(call.run())
        while not client.engine.streams:
            await asyncio.sleep(0)
        (stream,) = client.engine.streams
        while stream.num_steps < 10:
            await asyncio.sleep(0)
        call.leave()
        steps = stream.num_steps
        await running
        assert stream.cancelled and stream.num_steps <= steps + 2
        assert not client.server.running and '"status":499' in client.log.getvalue()
        assert client.engine.ended[FinishReason.CANCELLED] == 1

    run(work())


SCORES = [
    {"prompt": ["a", "b", "c"], "max_tokens": 0, "echo": True, "logprobs": 1},
    {"prompt": "a", "max_tokens": 1, "prompt_logprobs": 1},
]


@pytest.mark.parametrize("body", SCORES, ids=["alone", "after an answer"])
@pytest.mark.parametrize("end", ["leave", "cut off"])
def test_scores_end_with_the_client_and_with_the_server(body: dict[str, Any], end: str) -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(script=says("a")))
        call = Call(client.app, "POST", "/v1/completions", json.dumps(body).encode())
        client.engine.score_gate.clear()
        running = asyncio.create_task(call.run())
        while not client.engine.scores:
            await asyncio.sleep(0)
        call.leave() if end == "leave" else client.server.cut_off()
        await asyncio.wait_for(running, 10)
        assert client.engine.scores == 1 and not client.server.running
        assert f'"status":{499 if end == "leave" else 503}' in client.log.getvalue()
        assert '"event":"fault"' not in client.log.getvalue()

    run(work())


def test_faults_of_an_answer() -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(fault_after=3))
        assert (await client.post("/v1/chat/completions", CHAT)).status == 500
        stream = await client.post("/v1/chat/completions", STREAM)
        parts = stream.body.removesuffix(b"\n\n").split(b"\n\n")
        assert stream.status == 200 and b"[DONE]" not in stream.body
        assert json.loads(parts[-1].removeprefix(b"data: "))["error"]["type"] == "server_error"
        client = Client.of(ScriptedEngine(fault_after=0))
        assert (await client.post("/v1/chat/completions", STREAM)).status == 500  # nothing was streamed yet

    run(work())


def test_a_full_queue_is_429_and_a_prompt_that_cannot_fit_400() -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(refusal=QueueFull("256 requests wait", 2.4)))
        full = await client.post("/v1/chat/completions", STREAM)
        assert (full.status, full.headers["retry-after"]) == (429, "3")
        client.engine.refusal = None
        long = await client.post("/v1/completions", {"prompt": [5] * MAX_LEN})
        assert (long.status, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        several = await client.post("/v1/completions", {"prompt": [[5], [5] * MAX_LEN]})
        assert several.status == 400 and client.engine.streams[0].cancelled and not client.server.running

    run(work())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_the_engines_process_refuses_has_its_status(path: str, stream: bool) -> None:
    """R12: it hears of a full queue with the first row of the answer, when a stream has not begun."""

    async def work() -> None:
        client = Client.of(ScriptedEngine(fault_after=0, fault=QueueFull("2048 requests wait", 7)))
        text = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}[path]
        body = {text: [HI] if path != "/v1/completions" else "Hi", "stream": stream}
        full = await client.post(path, body)
        assert (full.status, full.headers["retry-after"]) == (429, "7")
        assert full.json()["error"]["code"] == "queue_full"
        client.engine.fault = PromptTooLong("no room")
        assert (await client.post(path, body)).status == 400
        metrics = (await client.get("/metrics")).body.decode()
        assert 'llmc:requests_ended_total{engine="0",how="refused",model_name="toy"} 2.0' in metrics

    run(work())


def test_engine_death() -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(script=lambda prompt, sample: [5] * 200))
        client.engine.gate.clear()
        calls = [Call(client.app, "POST", "/v1/chat/completions", json.dumps(b).encode()) for b in (CHAT, STREAM)]
        tasks = [asyncio.create_task(call.run()) for call in calls]
        while len(client.engine.streams) < 2:
            await asyncio.sleep(0)
        client.process.die()
        await asyncio.gather(*tasks)
        assert [call.response.status for call in calls] == [503, 503]
        for path in ("/health", "/ready"):
            assert (await client.get(path)).status == 503
        refused = await client.post("/v1/chat/completions", CHAT)
        assert refused.status == 503 and "killed by signal 9" in refused.json()["error"]["message"]
        client.process.revive()
        assert (await client.get("/health")).status == (await client.get("/ready")).status == 200

    run(work())


def test_draining_refuses_what_is_new_and_cutting_off_says_so() -> None:
    async def work() -> None:
        client = Client.of()
        client.engine.gate.clear()
        call = Call(client.app, "POST", "/v1/chat/completions", json.dumps(STREAM).encode())
        running = asyncio.create_task(call.run())
        while not client.engine.streams:
            await asyncio.sleep(0)
        client.server.stop_taking()
        new = await client.post("/v1/chat/completions", CHAT)
        assert new.status == 503 and int(new.headers["retry-after"]) > 0
        assert (await client.get("/ready")).status == 503 and (await client.get("/health")).status == 200
        client.engine.gate.set()
        await call.first.wait()
        client.engine.gate.clear()
        client.server.cut_off()
        await running
        last = call.response.body.removesuffix(b"\n\n").split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "cancelled"

    run(work())
