"""`llmc serve` with a real engine in a process of its own: answers, bad starts, signals, and a child that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
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


def until_healthy(one: Served, status: int) -> None:
    end = time.monotonic() + HANG
    while httpx.get(f"{one.url}/health").status_code != status:
        assert time.monotonic() < end
        time.sleep(0.01)


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
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(HANG) == 0
        events = one.events()
        assert [event["event"] for event in events][-2:] == ["draining", "drained"]


def test_a_killed_child_ends_streams_with_an_error_and_then_the_server(shared_engine: Path) -> None:
    with served(shared_engine) as one:
        with httpx.stream("POST", f"{one.url}/v1/completions", json={**LONG, "stream": True}, timeout=HANG) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(one.child, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_gone"
        assert one.process.wait(HANG) == 1


def until_metric(one: Served, line: str) -> None:
    end = time.monotonic() + HANG
    while line not in httpx.get(f"{one.url}/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_goes_away_frees_its_blocks(one_server: Served, stream: bool) -> None:
    label = 'engine="0",how="cancelled",model_name="toy"'
    port = int(one_server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), HANG) as connection:
        body = json.dumps({**LONG, "n": 8, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        until_metric(one_server, 'vllm:num_requests_running{engine="0",model_name="toy"} 8.0')
    until_metric(one_server, f"llmc:requests_ended_total{{{label}}} {1 + stream}.0")
    until_metric(one_server, 'vllm:num_requests_running{engine="0",model_name="toy"} 0.0')
    until_metric(one_server, 'vllm:kv_cache_usage_perc{engine="0",model_name="toy"} 0.0')


def test_with_restart_it_serves_again(shared_engine: Path) -> None:
    with served(shared_engine, "--restart") as one:
        os.kill(one.child, signal.SIGKILL)
        until_healthy(one, 503)
        until_healthy(one, 200)
        while (ready := httpx.get(f"{one.url}/ready")).status_code != 200:
            assert ready.json()["error"]["code"] in ("starting", "engine_gone")
        assert httpx.post(f"{one.url}/v1/chat/completions", json=CHAT, timeout=HANG).status_code == 200


def test_a_bad_start_is_one_line(shared_engine: Path, tmp_path: Path) -> None:
    """R20."""
    (tmp_path / "no.keys").write_text("# none yet\n")
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
            "two engines": [engine, engine, "--port", "0"],
        }
        for what, arguments in bad.items():
            result = CliRunner().invoke(main, ["serve", *arguments])
            assert result.exit_code == 2, (what, result.output)
            assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("llmc: "), result.stderr
            assert what in result.stderr.lower()
