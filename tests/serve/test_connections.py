"""What only a real connection shows: bounds on headers, readers that are slow, who hangs up, what is no HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from llmc.runtime.loop.request import FinishReason
from llmc.serve.http.listener import MAX_HEADER_BYTES, MAX_HEADERS
from llmc.serve.protocol.json_body import MAX_BODY_BYTES
from tests.serve.live import listening
from tests.serve.scripted import ScriptedEngine

HANG = 20
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def port(engine: ScriptedEngine) -> Iterator[int]:
    with listening(engine) as port:
        yield port


def exchange(port: int, sent: bytes, until: bytes = b"") -> bytes:
    """What comes back, until the server closes or has said `until`."""
    with socket.create_connection(("127.0.0.1", port), HANG) as connection:
        connection.sendall(sent)
        received = b""
        while not until or until not in received:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            received += piece
    return received


@pytest.mark.parametrize(
    "headers",
    [
        b"a: b\r\n" * (MAX_HEADERS + 1),
        b"a: " + b"x" * MAX_HEADER_BYTES + b"\r\n",
    ],
    ids=["many", "long"],
)
def test_headers_are_bounded(port: int, headers: bytes) -> None:
    received = exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 431 ") and received.count(b"HTTP/1.1") == 1
    assert exchange(port, b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    endless = b"GET /health HTTP/1.1\r\na: " + b"x" * MAX_HEADER_BYTES
    assert exchange(port, endless).startswith(b"HTTP/1.1 431 ")
    assert b"200 OK" in exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")


def test_bodies_are_bounded_whether_their_length_is_told_or_not(port: int) -> None:
    told = HEAD + b"content-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)
    assert exchange(port, told).startswith(b"HTTP/1.1 413 ")
    chunk = b"%x\r\n" % 2**16 + b" " * 2**16 + b"\r\n"
    untold = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk * (MAX_BODY_BYTES // 2**16 + 1)
    assert exchange(port, untold, b"413").startswith(b"HTTP/1.1 413 ")


def test_what_is_not_http_is_400_and_hurts_nobody(port: int) -> None:
    for sent in (b"\x16\x03\x01\x00\xa5\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100):
        received = exchange(port, sent)
        assert b" 400 " in received[:20]
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert b"200 OK" in exchange(port, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")


def test_requests_one_behind_the_other(port: int) -> None:
    ask = HEAD + b"content-length: %d\r\n\r\n" % len(CHAT) + CHAT
    last = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    received = exchange(port, ask + ask + last)
    assert received.count(b"data: [DONE]") == 2 and received.count(b"HTTP/1.1 200") == 3


def test_a_reader_who_hangs_up_in_the_middle_cancels(port: int, engine: ScriptedEngine) -> None:
    before, engine.step_seconds = engine.ended[FinishReason.CANCELLED], 0.005
    try:
        exchange(port, HEAD + b"content-length: %d\r\n\r\n" % len(CHAT) + CHAT, until=b"data: ")
        end = time.monotonic() + HANG
        while engine.ended[FinishReason.CANCELLED] == before and time.monotonic() < end:
            time.sleep(0.005)
        assert engine.ended[FinishReason.CANCELLED] == before + 1
    finally:
        engine.step_seconds = 0


def test_who_asks_ahead_and_hangs_up_cancels(port: int, engine: ScriptedEngine) -> None:
    """The request that is being answered, not the one that came last."""
    body = CHAT.replace(b"true", b"false")
    before, known = engine.ended[FinishReason.CANCELLED], len(engine.streams)
    script, engine.script, engine.step_seconds = engine.script, lambda prompt, sample: [100] * 200, 0.02
    try:
        with socket.create_connection(("127.0.0.1", port), HANG) as connection:
            connection.sendall((HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) * 3)
            end = time.monotonic() + HANG
            while len(engine.streams) == known and time.monotonic() < end:
                time.sleep(0.005)
        while not engine.streams[known].over and time.monotonic() < end:
            time.sleep(0.005)
        assert engine.ended[FinishReason.CANCELLED] == before + 1 and len(engine.streams) == known + 1
    finally:
        engine.script, engine.step_seconds = script, 0


def test_a_reader_who_takes_nothing_holds_up_nobody(port: int, engine: ScriptedEngine) -> None:
    """His own stream waits in his own handler, and not in memory without bound."""
    fields = {"stream": True, "n": 16, "max_tokens": 250, "ignore_eos": True, "logprobs": 20}
    loud = json.dumps({"prompt": ["x"] * 8, **fields}).encode()
    head = HEAD.replace(b"chat/", b"") + b"content-length: %d\r\n\r\n" % len(loud)
    before = len(engine.streams)
    script, engine.script = engine.script, lambda prompt, sample: [100] * 250
    try:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(HANG)
            slow.connect(("127.0.0.1", port))
            slow.sendall(head + loud)
            slow.recv(100)
            ask = HEAD + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(CHAT) + CHAT
            for _ in range(3):
                assert exchange(port, ask).count(b"data: [DONE]") == 1
            held = engine.streams[before : before + 8]
            assert not any(stream.over for stream in held)
        end = time.monotonic() + HANG
        while not all(stream.cancelled for stream in held) and time.monotonic() < end:
            time.sleep(0.005)
        assert all(stream.cancelled for stream in held)
    finally:
        engine.script = script
