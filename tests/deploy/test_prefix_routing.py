"""What the router for Ray Serve decides by. Ray itself is not needed, and not tried here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.ray_serve.prefix import MAX_PIECES, PIECE_CHARS, PrefixTable, choose, prefix_keys

LONG = "Answer in verse. " * 100


def chat(system: str, *turns: str, **fields: Any) -> bytes:
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": turn} for turn in turns)]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def shared(a: bytes, b: bytes) -> int:
    """Pieces at the beginning that two requests have in common; nothing after the first difference is."""
    ours, theirs = prefix_keys(a), prefix_keys(b)
    same = [x == y for x, y in zip(ours, theirs, strict=False)]
    assert same == sorted(same, reverse=True) and len(set(ours)) == len(ours)
    return sum(same)


def test_conversations_share_what_they_begin_with() -> None:
    pieces = len(LONG) // PIECE_CHARS
    assert shared(chat(LONG, "Who?"), chat(LONG, "Why?")) == pieces
    assert shared(chat(LONG, LONG, "Who?"), chat(LONG, LONG, "Why?")) >= 2 * pieces
    assert shared(chat("x" + LONG), chat(LONG)) == 0
    assert shared(chat(LONG[:-1] + "!"), chat(LONG)) == pieces


@pytest.mark.parametrize("field", [{"cache_salt": "a"}, {"model": "other"}, {"tools": [{"type": "function"}]}])
def test_other_engines_salts_and_tools_share_nothing(field: dict[str, Any]) -> None:
    assert shared(chat(LONG, **field), chat(LONG)) == 0


def test_sampling_is_no_part_of_a_prefix() -> None:
    one, other = chat(LONG, temperature=1, stream=True), chat(LONG)
    assert prefix_keys(one) == prefix_keys(other) != ()


@pytest.mark.parametrize("prompt", [LONG, list(range(1000)), [LONG, LONG]], ids=["text", "ids", "texts"])
@pytest.mark.parametrize("field", ["prompt", "input"])
def test_every_kind_of_prompt_has_keys(prompt: Any, field: str) -> None:
    assert len(prefix_keys(json.dumps({field: prompt}).encode())) >= len(LONG) // PIECE_CHARS


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"messages": 1}', b'{"messages": {}}', b'{"prompt": "short"}', b"[" * 10**5],
)
def test_what_has_no_prefix_has_no_keys(body: bytes) -> None:
    assert prefix_keys(body) == ()


def test_lone_surrogates_and_endless_prompts_have_keys() -> None:
    assert prefix_keys(b'{"prompt": "' + rb"\ud800" * 1000 + b'"}')
    assert len(prefix_keys(json.dumps({"prompt": "x" * 10**6}).encode())) == MAX_PIECES


def test_the_replica_that_has_seen_most_is_found() -> None:
    table = PrefixTable()
    table.sent([b"1", b"2", b"3"], "a")
    table.sent([b"1", b"2", b"4"], "b")
    assert table.find([b"1", b"2", b"3", b"5"], {"a", "b"}) == "a"
    assert table.find([b"1", b"2", b"6"], {"a", "b"}) == "b"  # the last that it was sent to
    assert table.find([b"1", b"2", b"3"], {"b"}) == "b"  # a is gone
    assert table.find([b"7"], {"a", "b"}) is None and table.find([], {"a"}) is None


def test_what_was_asked_for_longest_ago_is_forgotten_from_its_end() -> None:
    table = PrefixTable(max_keys=3)
    table.sent([b"1", b"2", b"3"], "a")
    table.sent([b"4"], "b")
    assert table.find([b"1", b"2", b"3"], {"a"}) == "a" and table.find([b"3"], {"a"}) is None


def test_load_counts_for_more_than_a_prefix_beyond_the_slack() -> None:
    table = PrefixTable()
    table.sent([b"1"], "a")
    assert choose(table, [b"1"], {"a": 8, "b": 0, "c": 3}, slack=8) == ("a", ["b", "c"])
    assert choose(table, [b"1"], {"a": 9, "b": 0, "c": 3}, slack=8) == (None, ["b", "c", "a"])
    assert choose(table, [b"9"], {"a": 0, "b": 1}, slack=8) == (None, ["a", "b"])
