"""An answer of an OpenAI-compatible server, read from what arrived: server-sent events, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from llmc.serve.load.connection import Exchange
from llmc.serve.load.plan import Planned
from llmc.serve.load.records import Record


def events(exchange: Exchange) -> Iterator[tuple[float, bytes]]:
    """The data of each event, and when its last byte arrived. One piece may hold several events, or a part of one."""
    buffer = b""
    for when, piece in exchange.pieces:
        buffer = (buffer + piece).replace(b"\r\n", b"\n")
        *whole, buffer = buffer.split(b"\n\n")
        for event in whole:
            data = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield when, b"\n".join(data)


def read_answer(exchange: Exchange, planned: Planned, started: float, arrival: float | None) -> Record:
    """`started`: the clock when the run began; `arrival`: seconds after it, where the plan has one."""
    sent = exchange.sent - started
    begin = sent if arrival is None else arrival
    answer = _Answer()
    if exchange.broken is None and exchange.status != 200:
        answer.error = f"HTTP {exchange.status}: {_message(exchange.body)}"
    else:
        for when, data in events(exchange):
            answer.take(when - started, data)
        answer.error = exchange.broken or answer.error or answer.unfinished
    usage = answer.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Record(
        planned,
        begin,
        sent,
        tuple(answer.outputs),
        answer.end,
        usage.get("prompt_tokens", planned.input_len),
        usage.get("completion_tokens", len(answer.outputs)),
        details.get("cached_tokens"),
        answer.usage is not None,
        answer.error,
    )


class _Answer:
    """What the events of one stream amount to."""

    def __init__(self) -> None:
        self.outputs: list[float] = []
        self.end = 0.0
        self.usage: dict[str, Any] | None = None
        self.error: str | None = None
        self._ended = False

    def take(self, when: float, data: bytes) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.error = f"an event is no JSON: {data[:80]!r}"
            return
        if not _is_chunk(event):
            self.error = f"an event is no chunk of an answer: {data[:80]!r}"
            return
        if "error" in event:
            self.error = f"in the stream: {_error_text(event)}"
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.end = when
            if _brings_tokens(choice):
                self.outputs.append(when)
            self._ended = self._ended or choice.get("finish_reason") is not None

    @property
    def unfinished(self) -> str | None:
        """Why this is no whole answer."""
        if not self._ended:
            return "the stream broke off"
        return None if self.outputs else "an answer without a token"


def _is_chunk(event: Any) -> bool:
    """Whether it has the shape that is read here; what a server says may be anything."""
    if not isinstance(event, dict):
        return False
    choices, usage = event.get("choices") or [], event.get("usage") or {}
    if not isinstance(choices, list) or not isinstance(usage, dict):
        return False
    counts = [usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")]
    return (
        all(isinstance(one, dict) and isinstance(one.get("delta", {}), dict) for one in choices)
        and all(type(count) is int and count >= 0 for count in counts)
        and isinstance(usage.get("prompt_tokens_details") or {}, dict)
    )


def _brings_tokens(choice: dict[str, Any]) -> bool:
    """Not the event that only begins a message, nor one that only ends it.

    One without text in between counts: its token is not a whole character yet.
    """
    said = choice.get("delta", choice)
    if any(said.get(key) for key in ("text", "content", "reasoning_content", "reasoning", "tool_calls")):
        return True
    return "role" not in said and choice.get("finish_reason") is None


def _message(body: bytes) -> str:
    try:
        return _error_text(orjson.loads(body))
    except orjson.JSONDecodeError:
        return body[:200].decode(errors="replace")


def _error_text(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
