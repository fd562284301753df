"""What HTTP allows and no client library does, and what it does not: answered right, or refused, and healthy after."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from llmc.runtime.loop.results import TokenLogprobs
from tests.serve.live import listening
from tests.serve.scripted import TEXT, ScriptedEngine
from tests.serve.strict_sse import content, frames
from tests.serve.wire import Wire, connected, head, post

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Hi"}]}
BODY = json.dumps(ASKED).encode()
GOOD = post(CHAT, ASKED)
JSON = {"Content-Type": "application/json"}
HANG = 30.0
IN_PIECES = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"


def run(work: Callable[[Wire], Awaitable[None]]) -> None:
    """On one connection; another one is served afterwards."""

    async def both(url: str) -> None:
        async with asyncio.timeout(HANG):
            async with connected(url) as wire:
                await work(wire)
            async with connected(url) as wire:
                wire.send(GOOD)
                assert await wire.response() == 200 and said(wire) == TEXT

    with listening(ScriptedEngine()) as port:
        asyncio.run(both(f"http://127.0.0.1:{port}"))


def said(wire: Wire) -> str:
    return str(json.loads(wire.body)["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (GOOD, 200),
        (post(CHAT, {**ASKED, "stream": True}), 200),
        (post(CHAT, {**ASKED, "n": 99}), 400),
        (post(CHAT, b"{"), 400),
        (post("/nowhere", ASKED), 404),
        (head(CHAT, {"Content-Length": "2"}, "PUT") + b"{}", 405),
        (head(CHAT, {"Content-Type": "text/plain", "Content-Length": "2"}) + b"{}", 415),
        (head(CHAT, {**JSON, "Transfer-Encoding": "chunked"}) + IN_PIECES, 200),
        (head("/health", {"Upgrade": "websocket", "Connection": "Upgrade"}, "GET"), 200),
        (post(CHAT, ASKED, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c"), 200),
    ],
    ids=lambda value: value.split(b" HTTP")[0].decode() if isinstance(value, bytes) else str(value),
)
def test_a_connection_serves_the_next_request_too(first: bytes, status: int) -> None:
    """Both are sent at once, and answered in turn."""

    async def work(wire: Wire) -> None:
        wire.send(first + GOOD)
        assert await wire.response() == status
        wire.begin()
        assert await wire.response() == 200 and said(wire) == TEXT

    run(work)


@pytest.mark.parametrize(
    "sent",
    [
        bytes(range(256)) * 9,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes.fromhex("16030100a5010000a10303") + bytes(160),
        head(CHAT, {**JSON, "Transfer-Encoding": "chunked"}) + b"zz\r\n{}\r\n",
        head(CHAT, {**JSON, "Transfer-Encoding": "chunked", "Content-Length": "5"}) + b"0\r\n\r\n",
        head(CHAT, {**JSON, "Content-Length": "-5"}) + BODY,
        head(CHAT, {**JSON, "Content-Length": "9" * 25}),
        head(CHAT, {**JSON, "Content-Length": "2", "content-length": "3"}) + b"{}",
        head("evil:443", {}, "CONNECT"),
    ],
)
def test_what_is_no_request_is_400(sent: bytes) -> None:
    async def work(wire: Wire) -> None:
        wire.send(sent)
        assert await wire.response() == 400 and json.loads(wire.body)["error"]["code"] == "invalid_http"

    run(work)


def test_http_1_0() -> None:
    async def work(wire: Wire) -> None:
        streamed = json.dumps({**ASKED, "stream": True}).encode()
        wire.send(head(CHAT, {**JSON, "Content-Length": str(len(streamed))}, version="1.0") + streamed)
        while not wire.body.endswith(b"data: [DONE]\n\n"):
            assert await wire.read() or wire.body
        assert content(frames(wire.body)) == TEXT

    run(work)


@pytest.mark.parametrize(("length", "begins"), [(len(BODY), b"HTTP/1.1 100"), (10**9, b"HTTP/1.1 413")])
def test_who_asks_before_sending_a_body_is_told(length: int, begins: bytes) -> None:
    async def work(wire: Wire) -> None:
        wire.send(head(CHAT, {**JSON, "Content-Length": str(length), "Expect": "100-continue"}))
        assert (await wire.raw()).startswith(begins)

    run(work)


def test_half_a_body_and_gone() -> None:
    async def work(wire: Wire) -> None:
        wire.send(head(CHAT, {**JSON, "Content-Length": str(len(BODY))}) + BODY[:9])
        await asyncio.sleep(0)
        wire.hang_up()

    run(work)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": [1, 2], "echo": True, "max_tokens": 0}), (CHAT, {**ASKED, "prompt_logprobs": 1})],
)
def test_a_score_ends_when_its_client_has_gone(path: str, body: dict[str, object]) -> None:
    began, ended = threading.Event(), threading.Event()

    class Slow(ScriptedEngine):
        async def score(self, token_ids: Sequence[int], top: int = 0) -> list[TokenLogprobs]:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    async def work(url: str) -> None:
        async with connected(url) as wire:
            wire.send(post(path, body))
            assert await asyncio.to_thread(began.wait, HANG)
            wire.hang_up()
        assert await asyncio.to_thread(ended.wait, HANG)

    with listening(Slow()) as port:
        asyncio.run(work(f"http://127.0.0.1:{port}"))
