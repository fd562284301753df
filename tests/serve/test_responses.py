"""/v1/responses, read by the `openai` client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llmc.runtime.loop.request import FinishReason
from llmc.serve.protocol.answer import Head, Usage
from llmc.serve.protocol.delta import Delta, ToolCallDelta
from llmc.serve.protocol.errors import ApiError
from llmc.serve.protocol.response_answer import ResponseAnswer
from llmc.serve.protocol.responses import read_responses
from tests.serve.asgi import Client
from tests.serve.live import openai_client
from tests.serve.scripted import TEXT, ScriptedEngine

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai_client(engine) as client:
        yield client


def test_create(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="toy", input="Hi", instructions="Be brief.", store=False)
    assert answer.output_text == TEXT and answer.status == "completed" and answer.instructions == "Be brief."
    assert answer.usage is not None and answer.usage.total_tokens > answer.usage.output_tokens > 0
    cut = client.responses.create(model="toy", input="Hi", max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens" and cut.output_text == TEXT[:3]


def test_what_came_back_goes_in_again(client: openai.OpenAI) -> None:
    first = client.responses.create(model="toy", input="Hi")
    items: Any = [{"role": "user", "content": "Hi"}, *(item.model_dump() for item in first.output)]
    again = client.responses.create(model="toy", input=[*items, {"role": "user", "content": "More"}])
    assert again.output_text == TEXT


def test_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="toy", input="Hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed"),
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert final.output_text == TEXT
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_refusals(client: openai.OpenAI) -> None:
    refused: list[dict[str, Any]] = [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"text": {"format": {"type": "json_object"}}},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"tools": [TOOL], "tool_choice": "required"},
    ]
    for fields in refused:
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**{"model": "toy", "input": "Hi", **fields})


def test_a_stream_that_fails_says_so() -> None:
    async def work() -> None:
        client = Client.of(ScriptedEngine(fault_after=3))
        response = await client.post("/v1/responses", {"input": "Hi", "stream": True})
        last = response.body.removesuffix(b"\n\n").split(b"\n\n")[-1]
        kind, data = last.split(b"\n")
        assert kind == b"event: response.failed"
        assert json.loads(data.removeprefix(b"data: "))["response"]["error"]["code"] == "answer_failed"
        assert (await client.post("/v1/responses", {"input": "Hi"})).status == 500

    asyncio.run(work())


def test_items_of_reasoning_and_calls() -> None:
    answer = ResponseAnswer(Head("resp_1", "toy", 5), {})
    answer.begin()
    answer.feed([Delta(reasoning="so"), Delta(reasoning=" be it")], 4)
    answer.feed([Delta(content="Well")], 1)
    answer.feed([Delta(tool_call=ToolCallDelta(0, "call_a", "add", '{"a"'))], 1)
    answer.feed([Delta(tool_call=ToolCallDelta(0, arguments=": 1}")), Delta(tool_call=ToolCallDelta(1, "b", "sub"))], 2)
    body = answer.finish(FinishReason.STOP, Usage(3, 8))
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "so be it"}]
    assert (body["output"][2]["call_id"], body["output"][2]["arguments"]) == ("call_a", '{"a": 1}')
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    events = [json.loads(e.split(b"\ndata: ")[1]) for e in answer.take_events().removesuffix(b"\n\n").split(b"\n\n")]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    joined = "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta")
    assert joined == '{"a": 1}'


def test_a_conversation_is_a_chat() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "2+3"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "easy"}]},
        {
            "type": "function_call",
            "id": "fc",
            "call_id": "c",
            "name": "add",
            "arguments": '{"a": 2}',
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "c", "output": "5"},
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "5"}]},
    ]
    chat = read_responses({"input": items, "tools": [TOOL]}).chat
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}, "id": "c"}
    assert chat.messages == [
        {"role": "user", "content": "2+3"},
        {"role": "assistant", "reasoning_content": "easy", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c"},
        {"role": "assistant", "content": "5"},
    ]
    assert chat.tools[0]["function"]["name"] == "add"
    for bad in (None, [], [{"role": "user"}], [{"role": ["a"], "content": "x"}], 5):
        with pytest.raises(ApiError):
            read_responses({"input": bad})


def test_what_is_wrong_is_named_as_the_client_named_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="toy", input="Hi", max_output_tokens=0)
    assert refused.value.param == "max_output_tokens" and "max_output_tokens" in str(refused.value)
