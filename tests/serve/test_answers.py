"""Bodies and chunks: what a client puts together from a stream is what it gets without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from llmc.runtime.errors import NonFiniteLogits
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Mark, Output, TokenLogprobs
from llmc.serve.protocol.answer import Head, Usage
from llmc.serve.protocol.chat import read_chat
from llmc.serve.protocol.chat_answer import ChatAnswer
from llmc.serve.protocol.completion_answer import CompletionAnswer, Echo
from llmc.serve.protocol.completions import read_completion
from llmc.serve.protocol.delta import ChatParser, Delta, PlainParser, ToolCallDelta
from llmc.serve.protocol.errors import ApiError
from llmc.serve.protocol.logprobs import LogprobBodies
from llmc.serve.protocol.token_texts import TokenTexts
from tests.runtime.sample_tokenizers import KINDS
from tests.runtime.test_tokenizer import TOKENIZERS
from tests.serve.scripted import TEXT, ScriptedEngine, says, tokenizer

HEAD = Head("chatcmpl-1", "toy", 5)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


class LetterParser:
    """A toy style: R is reasoning, C1 begins a call, which a lower-case letter goes on; the rest is content."""

    def feed(self, text: str, marks: Sequence[Mark] = ()) -> list[Delta]:
        return [self._delta(letter) for letter in text]

    def _delta(self, letter: str) -> Delta:
        if letter == "R":
            return Delta(reasoning=letter)
        if letter.isdigit():
            return Delta(tool_call=ToolCallDelta(int(letter), f"call_{letter}", "add"))
        return Delta(tool_call=ToolCallDelta(0, arguments=letter)) if letter.islower() else Delta(content=letter)

    def finish(self) -> list[Delta]:
        return [Delta(content="!")]


def chat(body: dict[str, Any], parser: Callable[[], ChatParser] = PlainParser) -> ChatAnswer:
    return ChatAnswer(HEAD, read_chat({**CHAT, **body}), LogprobBodies(TokenTexts(tokenizer())), parser)


def frames(written: bytes) -> list[dict[str, Any]]:
    assert not written or written.endswith(b"\n\n")
    return [json.loads(frame.removeprefix(b"data: ")) for frame in written.split(b"\n\n") if frame]


def outputs(engine: ScriptedEngine, **fields: Any) -> tuple[list[Output], Any]:
    async def run() -> tuple[list[Output], Any]:
        stream = await engine.submit("Hi", engine.sampling(**fields), n=2)
        return [output async for output in stream], await stream.result()

    return asyncio.run(run())


def test_a_stream_joins_to_the_body() -> None:
    pieces, completions = outputs(ScriptedEngine(), logprobs=2, max_tokens=20)
    body = {"logprobs": True, "top_logprobs": 2, "stream": True, "n": 2, "return_token_ids": True}
    streamed = chat(body)
    whole = chat(body).body(completions, Usage.of(completions, 0))
    chunks = frames(b"".join(streamed.chunk(piece, piece.sample) for piece in pieces))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert [c["delta"].get("role") for c in own] == ["assistant"] + [None] * (len(own) - 1)
        logprobs = [entry for c in own for entry in c["logprobs"]["content"]]
        assert logprobs == choice["logprobs"]["content"]
        assert [token for c in own for token in c["token_ids"]] == list(choice["token_ids"])
    assert whole["choices"][1]["message"]["content"] == (TEXT * 2)[: len(whole["choices"][1]["message"]["content"])]


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_reasoning_and_calls(cut: int) -> None:
    text = "RRA0{a}1{b}Z"
    answer = chat({"stream": True}, LetterParser)
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    written = [answer.chunk(Output(piece, (1,), (), None), 0) for piece in pieces]
    written.append(answer.chunk(Output("", (2,), (), FinishReason.STOP), 0))
    assert all(len(frames(one)) <= 1 for one in written)  # an output is a chunk
    choices = [chunk["choices"][0] for chunk in frames(b"".join(written))]
    calls: dict[int, dict[str, str]] = {}
    for call in (call for choice in choices for call in choice["delta"].get("tool_calls", ())):
        known = calls.setdefault(call["index"], {"arguments": ""})
        known.update({k: call[k] for k in ("id", "type") if k in call})
        known["arguments"] += call["function"]["arguments"]
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == "RR"
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "A{}{}Z!"
    assert calls[0] == {"id": "call_0", "type": "function", "arguments": "ab"} and calls[1]["arguments"] == ""
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_calls_of_a_body() -> None:
    _, completions = outputs(ScriptedEngine(script=says("R0ab1A")), max_tokens=6)
    message = chat({}, LetterParser).body(completions[:1], Usage(0, 0))["choices"][0]["message"]
    assert message["reasoning_content"] == "R" and message["content"] == "A!"
    functions = [(call["id"], call["type"], call["function"]) for call in message["tool_calls"]]
    assert functions == [
        ("call_0", "function", {"name": "add", "arguments": "ab"}),
        ("call_1", "function", {"name": "add", "arguments": ""}),
    ]
    one = chat({"parallel_tool_calls": False, "include_reasoning": False}, LetterParser)
    message = one.body(completions[:1], Usage(0, 0))["choices"][0]["message"]
    assert [call["id"] for call in message["tool_calls"]] == ["call_0"] and "reasoning_content" not in message


def test_usage_comes_last_and_is_null_before() -> None:
    answer = chat({"stream": True, "stream_options": {"include_usage": True}})
    (chunk,) = frames(answer.chunk(Output("a", (1,), (), None), 0))
    assert chunk["usage"] is None
    (last,) = frames(answer.usage_chunk(Usage(3, 4, 2) + Usage(1, 1)))
    assert last["choices"] == [] and last["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 5,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert "usage" not in frames(chat({"stream": True}).chunk(Output("a", (1,), (), None), 0))[0]


@pytest.mark.parametrize(
    ("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.CANCELLED, 503)], ids=["failed", "cancelled"]
)
def test_an_answer_that_failed_is_none(reason: FinishReason, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        chat({"stream": True}).chunk(Output("", (), (), reason, NonFiniteLogits("not finite")), 0)
    assert caught.value.status == status


def completion(body: dict[str, Any]) -> CompletionAnswer:
    request = read_completion({"prompt": "x", **body})
    return CompletionAnswer(Head("cmpl-1", "toy", 5), request, LogprobBodies(TokenTexts(tokenizer())))


def test_a_streamed_completion_joins_to_the_body() -> None:
    pieces, completions = outputs(ScriptedEngine(), logprobs=1, max_tokens=20)
    streamed, whole = completion({"logprobs": 1, "stream": True}), completion({"logprobs": 1})
    choice = whole.choice(0, completions[0], None)
    own = [f["choices"][0] for piece in pieces if piece.sample == 0 for f in frames(streamed.chunk(piece, 0))]
    assert "".join(one["text"] for one in own) == choice["text"]
    offsets = choice["logprobs"]["text_offset"]
    before = [tokenizer().decode(completions[0].token_ids[:at]) for at in range(20)]
    assert offsets == [len(text.rstrip("\ufffd")) for text in before] and "🦜" in before[-1]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for one in own for entry in one["logprobs"][name]] == choice["logprobs"][name]
    assert own[-1]["finish_reason"] == choice["finish_reason"] == "length"


@pytest.mark.parametrize("route", ["chat", "completion"])
def test_tokens_that_have_no_text_are_listed_too(route: str) -> None:
    """As those that a character begins with, or that may still become a stop string."""
    pieces = [Output("a", (1,), (), None), Output("", (2,), (), None), Output("b", (3,), (), FinishReason.LENGTH)]
    body = {"stream": True, "return_token_ids": True}
    one = chat(body) if route == "chat" else completion(body)
    chunks = frames(b"".join(one.chunk(piece, 0) for piece in pieces))
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == [1, 2, 3]


def test_echo_puts_the_prompt_first_with_its_logprobs() -> None:
    engine = ScriptedEngine()
    _, completions = outputs(engine, logprobs=1, max_tokens=3)
    ids = engine.encode("the the")
    entries = [TokenLogprobs(token, -1.0, ((token, -1.0),)) for token in ids[1:]]
    body = {"echo": True, "logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True}
    choice = completion(body).choice(0, completions[0], Echo("the the", ids, entries))
    assert choice["text"] == "the the" + TEXT[:3]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<|bos|>", "the", " the", *TEXT[:3]] and logprobs["token_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 0, 3, 7, 8, 9]  # the BOS is no text
    assert len(choice["prompt_logprobs"]) == len(ids) and choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1][str(ids[1])] == {"logprob": -1.0, "rank": 1, "decoded_token": "the"}
    alone = completion({"echo": True, "max_tokens": 0}).choice(0, None, Echo("the the", ids, None))
    assert (alone["text"], alone["finish_reason"], alone["logprobs"]) == ("the the", "length", None)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_tokens_join_to_the_text(kind: str) -> None:
    whole = TOKENIZERS[kind]
    texts = TokenTexts(whole)
    text = "a the 🦜 é — 中文 ok"
    ids: Sequence[int] = whole.encode(text)
    if whole.decode(ids) == text:  # not of tokenizers that normalise
        assert b"".join(texts.raw(token) for token in ids).decode().strip() == text
        assert all(
            texts.text(token) == texts.raw(token).decode(errors="replace")
            for token in ids
            if texts.text(token).isascii()
        )


def test_infinite_logprobs_are_json() -> None:
    body = LogprobBodies(TokenTexts(tokenizer())).chat([TokenLogprobs(5, float("-inf"), ((5, float("-inf")),))])
    assert body["content"][0]["logprob"] == body["content"][0]["top_logprobs"][0]["logprob"] == -9999.0
