"""Reads a stream of server-sent events as strictly as the most pedantic client."""

from __future__ import annotations

import json
from typing import Any

FRAME = b"data: "


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The events' objects of a stream that ended well. Comments are allowed, everything else is a fault."""
    assert stream.endswith(b"\n\n"), "the stream ends in the middle of an event"
    parts = [part for part in stream[:-2].split(b"\n\n") if not part.startswith(b":")]
    assert all(part.startswith(FRAME) and b"\n" not in part and b"\r" not in part for part in parts)
    assert parts[-1] == b"data: [DONE]" and parts.count(b"data: [DONE]") == 1
    return [json.loads(part.removeprefix(FRAME)) for part in parts[:-1]]


def chat_chunks(stream: bytes, n: int = 1, usage: bool = False) -> list[dict[str, Any]]:
    """The chunks of a chat, checked: one id, roles first, finish reasons null but for the last of each choice."""
    chunks = frames(stream)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    if usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for index in range(n):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] in ("stop", "length", "tool_calls")
        if "delta" in own[0]:
            assert [choice["delta"].get("role") for choice in own] == ["assistant", *[None] * (len(own) - 1)]
    assert all(len(chunk["choices"]) == 1 and 0 <= chunk["choices"][0]["index"] < n for chunk in chunks)
    return chunks


def content(chunks: list[dict[str, Any]], index: int = 0) -> str:
    own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in own)
