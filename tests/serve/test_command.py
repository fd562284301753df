"""`llmc serve` with a real engine in a process of its own: answers, bad starts, signals, and a child that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from click.testing import CliRunner

from llmc.compiler.commands.cli import main
from llmc.runtime import SamplingParams
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import IM_END
from tests.serve.serving import HANG, Served, served
from tests.serve.strict_sse import chat_chunks, content

LONG = {"prompt": [1, 2], "max_tokens": 250, "ignore_eos": True, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 40, "ignore_eos": True}


def test_answers_are_those_of_the_engine_and_a_signal_ends_it(shared_engine: Path, tmp_path: Path) -> None:
    """From a path with spaces, without a home, behind a key."""
    engine = tmp_path / "an engine with spaces"
    engine.symlink_to(shared_engine)
    home = {"HOME": "/nonexistent", "LLMC_API_KEY": "sk-1"}
    with served(engine, env=home) as one:
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="sk-1", max_retries=0, timeout=HANG)
        body = client.completions.create(
            model="toy",
            prompt=[1, 2],
            max_tokens=9,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        wanted = oracle.generate(
            [1, 2], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), 0, (IM_END,), 256
        )
        assert body.choices[0].model_dump()["token_ids"] == wanted[0]
        key = {"authorization": "Bearer sk-1"}
        whole = httpx.post(f"{one.url}/v1/chat/completions", json={**CHAT, "n": 2}, headers=key).json()
        stream = httpx.post(f"{one.url}/v1/chat/completions", json={**CHAT, "n": 2, "stream": True}, headers=key)
        for choice in whole["choices"]:
            assert content(chat_chunks(stream.content, n=2), choice["index"]) == choice["message"]["content"]
        assert httpx.get(f"{one.url}/v1/models").status_code == 401
        scored = client.completions.create(model="toy", prompt=[1, 2, 3], echo=True, max_tokens=0, logprobs=2)
        assert scored.choices[0].logprobs and len(scored.choices[0].logprobs.token_logprobs or ()) == 3
        with pytest.raises(openai.BadRequestError, match="256"):
            client.completions.create(model="toy", prompt=[1] * 256)
        with pytest.raises(openai.BadRequestError, match="is not an id"):
            client.completions.create(model="toy", prompt=[10**6], echo=True, max_tokens=0)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(HANG) == 0
        events = one.events()
        assert [event["event"] for event in events][-2:] == ["draining", "drained"]


def test_a_killed_child_ends_streams_with_an_error_and_then_the_server(shared_engine: Path) -> None:
    asked = {**LONG, "prompt": [[1, 2]] * 16, "n": 8, "stream": True}  # eight at once: most are still to be made then
    with served(shared_engine) as one:
        with httpx.stream("POST", f"{one.url}/v1/completions", json=asked, timeout=HANG) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(one.child, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_gone"
        assert one.process.wait(HANG) == 1


def until(one: Served, condition: Callable[[dict[str, float]], bool]) -> None:
    """It is true of the server's metrics, by name and outcome."""
    end = time.monotonic() + HANG
    while not condition(metrics(one)):
        assert time.monotonic() < end
        time.sleep(0.01)


def metrics(one: Served) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{one.url}/metrics").text.splitlines() if not line.startswith("#")]
    names = {line: re.sub(r'\{engine="0",(?:how="(\w+)",)?model_name="toy"\}', r"\1", line) for line in lines}
    return {name.rpartition(" ")[0]: float(name.rpartition(" ")[2]) for name in names.values()}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_goes_away_frees_its_blocks(one_server: Served, stream: bool) -> None:
    """R11 and R26: of 128 answers, eight at once, most are still to be made then."""
    before = metrics(one_server)
    with socket.create_connection(("127.0.0.1", int(one_server.url.rpartition(":")[2])), HANG) as connection:
        body = json.dumps({**LONG, "prompt": [[1, 2]] * 16, "n": 8, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        started = before["llmc:requests_started_total"] + 16
        until(one_server, lambda now: now["llmc:requests_started_total"] == started)
    until(
        one_server, lambda now: now["llmc:requests_ended_totalcancelled"] > before["llmc:requests_ended_totalcancelled"]
    )
    until(one_server, lambda now: now["vllm:num_requests_running"] == now["vllm:kv_cache_usage_perc"] == 0)
    after = metrics(one_server)
    assert started == sum(value for name, value in after.items() if name.startswith("llmc:requests_ended_total"))


def test_four_times_what_the_queue_holds(one_server: Served) -> None:
    """R12: what is not taken is told when to come again, and what is taken ends as it should."""

    async def work() -> list[httpx.Response]:
        asked = {**LONG, "n": 8, "max_tokens": 60}
        async with httpx.AsyncClient(base_url=one_server.url, timeout=HANG, limits=httpx.Limits()) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=asked) for _ in range(60)))

    answers = asyncio.run(work())
    taken = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(taken) + len(refused) == 60 and len(taken) >= 25 and refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    texts = {choice["text"] for answer in taken for choice in answer["choices"]}
    assert len(texts) == 1 and all(answer["usage"]["completion_tokens"] == 8 * 60 for answer in taken)
    until(one_server, lambda now: now["vllm:num_requests_running"] == now["vllm:kv_cache_usage_perc"] == 0)


def test_with_restart_it_serves_again(shared_engine: Path) -> None:
    with served(shared_engine, "--restart") as one:
        killed, end = one.child, time.monotonic() + HANG
        os.kill(killed, signal.SIGKILL)
        while killed in one.children:
            assert time.monotonic() < end
        while (answer := httpx.post(f"{one.url}/v1/chat/completions", json=CHAT, timeout=HANG)).status_code != 200:
            assert answer.json()["error"]["code"] in ("starting", "engine_gone") and time.monotonic() < end
        assert httpx.get(f"{one.url}/ready").status_code == httpx.get(f"{one.url}/health").status_code == 200


def test_a_bad_start_is_one_line(shared_engine: Path, tmp_path: Path) -> None:
    """R20."""
    (tmp_path / "no.keys").write_text("# none yet\n")
    (tmp_path / "bad.keys").write_bytes(b"\xff\xfe")
    engine = str(shared_engine)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        bad = {
            "address already in use": [engine, "--port", port],
            "cannot assign": [engine, "--host", "203.0.113.1", "--port", "0"],
            "no such file": [engine, "--uds", str(tmp_path / "nowhere" / "socket")],
            "nothing": [str(tmp_path / "nothing"), "--port", "0"],
            "kv_memory": [engine, "--port", "0", "--kv-memory", "1"],
            "max_batch": [engine, "--port", "0", "--max-batch", "4096"],
            "no.keys": [engine, "--port", "0", "--api-key-file", str(tmp_path / "no.keys")],
            "bad.keys": [engine, "--port", "0", "--api-key-file", str(tmp_path / "bad.keys")],
            "--api-key": [engine, "--port", "0", "--api-key", "", "--api-key", "good"],
            "has no name": [f"={engine}", "--port", "0"],
            "max_queued": [engine, "--port", "0", "--queue", "0"],
            "--cors": [engine, "--port", "0", "--cors", "https://a.example/"],
            "two engines": [engine, engine, "--port", "0"],
        }
        for what, arguments in bad.items():
            result = CliRunner().invoke(main, ["serve", *arguments])
            assert result.exit_code == 2, (what, result.output)
            assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("llmc: "), result.stderr
            assert what in result.stderr.lower()
