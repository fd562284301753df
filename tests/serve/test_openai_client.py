"""The `openai` client, as it comes from PyPI, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llmc.runtime.loop.request import FinishReason
from tests.serve.live import openai_client
from tests.serve.scripted import TEXT, ScriptedEngine

KEY = "sk-test"
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai_client(engine, KEY) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=HI, n=3, seed=7, user="me", store=False)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT * 2, TEXT * 3]
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert answer.usage is not None and answer.usage.total_tokens > answer.usage.prompt_tokens > 0


def test_stop_and_length(client: openai.OpenAI) -> None:
    stopped = client.chat.completions.create(model="toy", messages=HI, stop=["grü", "zzz"])
    assert stopped.choices[0].message.content == TEXT.partition("grü")[0]
    cut = client.chat.completions.create(model="toy", messages=HI, max_completion_tokens=3)
    assert cut.choices[0].finish_reason == "length" and cut.usage and cut.usage.completion_tokens == 3


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    said = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content[:-1])  # the last one is the end token
    assert said.decode() == TEXT
    assert {len(entry.top_logprobs) for entry in logprobs.content if entry.token != "!"} == {2}  # "!" is id 0


def test_streams(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="toy", messages=HI, stream=True, stream_options=options, n=2))
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == TEXT * (index + 1)
        assert own[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0
    pieces = list(client.completions.create(model="toy", prompt="x", stream=True, max_tokens=100))
    assert "".join(piece.choices[0].text for piece in pieces) == TEXT


def test_the_streaming_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="toy", messages=HI) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == TEXT


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt=["a", "b"], echo=True, logprobs=1, max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["aHe", "bHe"]
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.tokens == ["<|bos|>", "a", "H", "e"]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy"] and client.models.retrieve("toy").id == "toy"


def test_an_aborted_stream_is_cancelled(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    before, engine.step_seconds = engine.ended[FinishReason.CANCELLED], 0.005
    try:
        stream = client.chat.completions.create(model="toy", messages=HI, stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(2000):
            if engine.ended[FinishReason.CANCELLED] > before:
                break
            asyncio.run(asyncio.sleep(0.005))
        assert engine.ended[FinishReason.CANCELLED] == before + 1
    finally:
        engine.step_seconds = 0


def test_errors_are_the_clients_own(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.chat.completions.create(model="toy", messages=HI, temperature=-1)
    assert refused.value.param == "temperature" and refused.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nothing", messages=HI)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(model="toy", messages=HI, response_format={"type": "json_object"})
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model="toy", input="x", encoding_format="float")
    engine.fault_after = 2
    try:
        with pytest.raises(openai.APIError, match="fails here"):
            list(client.chat.completions.create(model="toy", messages=HI, stream=True))
    finally:
        engine.fault_after = None
