"""R7 and R8: whatever a client sends is answered with 200 or 4xx, and the server is well afterwards."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from tests.serve.asgi import Client
from tests.serve.scripted import MAX_LEN, ScriptedEngine, says

HI = {"role": "user", "content": "Hi"}
CAPS = {
    "n": 16,
    "best_of": 16,
    "max_tokens": MAX_LEN,
    "max_completion_tokens": MAX_LEN,
    "min_tokens": 2**31 - 1,
    "temperature": 10**6,
    "top_p": 1,
    "top_k": 2**31 - 1,
    "min_p": 1,
    "repetition_penalty": 10**6,
    "presence_penalty": 10**6,
    "frequency_penalty": 10**6,
    "seed": 2**64 - 1,
    "priority": 2**31 - 1,
    "top_logprobs": 20,
    "logprobs": 20,
    "prompt_logprobs": 20,
    "stop_token_ids": 261,
    "logit_bias": 100,
    "length_penalty": 1,
    "stream": 1,
}
RAW = (
    "0",
    "-1",
    "1",
    "{cap}",
    "{cap}1",
    str(2**31),
    str(2**63),
    "1e308",
    "-1e308",
    "1e400",
    "NaN",
    '"1"',
    "null",
    "0.5",
)
SURROGATES = (r'"\ud800"', r'"\udc00x"', r'"\ud83e\udd9c"', r'"\ud800\ud800"')
TEXTS = ("model", "stop", "user", "cache_salt", "latency", "service_tier", "messages", "prompt", "tools")
EDGES = [
    (path, field, raw.format(cap=CAPS[field]))
    for path in ("/v1/chat/completions", "/v1/completions")
    for field in CAPS
    for raw in RAW
] + [
    (path, field, raw)
    for path in ("/v1/chat/completions", "/v1/completions")
    for field in TEXTS
    for raw in (*SURROGATES, "0", "[]", "{}", '""', "[[]]", '{"a": null}')
]


def body_with(path: str, field: str, raw: str) -> bytes:
    """The value is written as it is: NaN and 1e400 are nothing that json.dumps writes."""
    base: dict[str, Any] = {"messages": [HI]} if "chat" in path else {"prompt": "Hi"}
    base = {"max_tokens": 4, **base}
    if field == "top_logprobs":
        base["logprobs"] = True
    base.pop(field, None)
    value = {"stop_token_ids": f"[{raw}]", "logit_bias": f'{{"5": {raw}}}'}.get(field, raw)
    inner = json.dumps(base)[1:-1]
    return f'{{{inner}{", " if inner else ""}"{field}": {value}}}'.encode()


def test_every_numeric_field_at_its_edges() -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(script=says("abc")))
        seen: Counter[int] = Counter()
        for path, field, raw in EDGES:
            response = await client.post(path, body_with(path, field, raw))
            assert response.complete and (response.status == 200 or 400 <= response.status < 500), (path, field, raw)
            seen[response.status] += 1
            if response.status != 200:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert seen[200] > 100 and seen[400] > 300
        healthy = await client.post("/v1/chat/completions", {"messages": [HI]})
        assert healthy.json()["choices"][0]["message"]["content"] == "abc"
        assert not client.server.running
        assert '"event":"fault"' not in client.log.getvalue()

    asyncio.run(work())


GRAMMAR: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 1e308, -0.0, 0.5, "", "a", "auto", "user", "\x00", "🦜", "x" * 300),
    *([], {}, [[]], [None], [0], ["a"], {"type": "text"}, {"type": "function"}, HI, {"text": "a", "type": "text"}),
    *({"function": {"name": "f"}, "type": "function"}, {"include_usage": True}, {"5": 1}),
]
GOOD: dict[str, Any] = {
    "n": 2,
    "temperature": 0.5,
    "top_k": 5,
    "seed": 3,
    "stop": ["b"],
    "logit_bias": {"5": 1},
    "user": "me",
    "stream": True,
    "messages": [HI, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}, HI],
    "prompt": ["a", "b"],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "priority": 1,
    "latency": "batch",
}
NAMES = [
    *(*CAPS, *TEXTS, "echo", "stream_options", "tool_choice", "response_format", "chat_template_kwargs", "documents"),
    *("reasoning_effort", "parallel_tool_calls", "logit_bias", "suffix", "tokens", "input", "nonsense", "reasoning"),
    *("text", "instructions"),
]
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/v1/embeddings",
    "/v1/models",
    "/health",
]


BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": [HI], "max_output_tokens": 2},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}


def fuzzed(rng: random.Random) -> tuple[str, bytes]:
    """A path, and a body that begins well and then goes wrong: in its values, or in its bytes."""
    path = rng.choice(PATHS)
    body: dict[str, Any] = dict(BASES.get(path, {"messages": [HI], "max_tokens": 2}))
    for name in rng.choices(list(GOOD), k=rng.randrange(3)):
        if name not in ("messages", "prompt", "tools") or name in body:
            body[name] = GOOD[name]
    for name in rng.choices(NAMES, k=rng.choice([0, 0, 1, 1, 2])):
        body[name] = _value(rng, 3)
    written = bytearray(json.dumps(body), "utf-8")
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        at = rng.randrange(len(written))
        written[at : at + rng.randrange(3)] = rng.choice(
            [b"", b"[", b"{", b'"', b"\\", b"\xff", b"e9", b"\\ud800", b","]
        )
    return path, bytes(written)


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth and kind < 0.15:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind < 0.3:
        return {
            rng.choice(["role", "content", "type", "function", "name", "x"]): _value(rng, depth - 1) for _ in range(3)
        }
    return rng.choice(GRAMMAR)


async def fuzz(rounds: int, seed: int) -> Counter[int]:
    client, rng, seen = Client.of(ScriptedEngine(script=says("abc"))), random.Random(seed), Counter[int]()
    for _ in range(rounds):
        path, body = fuzzed(rng)
        response = await asyncio.wait_for(client.post(path, body), 10)
        assert response.complete and response.status < 500, (path, body)
        seen[response.status] += 1
    assert not client.server.running and '"event":"fault"' not in client.log.getvalue()
    return seen


@pytest.mark.parametrize("seed", range(2))
def test_fuzzed_bodies(seed: int) -> None:
    seen = asyncio.run(fuzz(5000, seed))
    assert seen[200] > 300 and seen[400] > 1000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_million_fuzzed_bodies(seed: int) -> None:
    asyncio.run(fuzz(10_000, seed))
