"""What a server answered, in a form in which two answers are equal or are not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.serve.strict_sse import frames

Logprob = tuple[int, float, tuple[tuple[int, float], ...]]  # a token, its own, and the best


@dataclass
class Choice:
    """Log-probabilities bit for bit: JSON has all digits of a double."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None
    logprobs: list[Logprob | None] = field(default_factory=list)


def read_whole(body: bytes) -> list[Choice]:
    answer = json.loads(body)
    return [_add(Choice(), choice) for choice in answer["choices"]]


def read_stream(body: bytes, n: int) -> list[Choice]:
    """Of a strict stream; AssertionError where it is none."""
    found = [Choice() for _ in range(n)]
    for chunk in frames(body):
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            assert found[choice["index"]].reason is None, "more after the end"
            _add(found[choice["index"]], choice)
    return found


def _add(found: Choice, choice: dict[str, Any]) -> Choice:
    said = choice.get("delta") or choice.get("message")
    found.text += choice.get("text", "") if said is None else said.get("content") or ""
    found.ids += choice.get("token_ids") or ()
    found.reason = choice["finish_reason"]
    logprobs = choice["logprobs"]
    if logprobs is not None:
        found.logprobs += _of_chat(logprobs) if "content" in logprobs else _of_completion(logprobs)
    return found


def _of_chat(logprobs: dict[str, Any]) -> list[Logprob | None]:
    return [
        (_id(entry["token"]), entry["logprob"], _sorted((t["token"], t["logprob"]) for t in entry["top_logprobs"]))
        for entry in logprobs["content"]
    ]


def _of_completion(logprobs: dict[str, Any]) -> list[Logprob | None]:
    """The chosen token is among the best of this form, whether it is one of them or not."""
    entries = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [None if own is None else (_id(token), own, _sorted(best.items())) for token, own, best in entries]


def _sorted(entries: Any) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((_id(token), logprob) for token, logprob in entries))


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))
