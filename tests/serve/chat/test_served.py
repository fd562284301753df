"""Calls and reasoning through the server, as OpenAI's client sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.serve.asgi import Client
from tests.serve.chat.styles import TEMPLATES, TOOLS
from tests.serve.live import listening
from tests.serve.scripted import ScriptedEngine, says, tokenizer

CALLING = (
    "<think>\nBern, so.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time_of", "arguments": {}}\n</tool_call>'
)
ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS}


def engine(answer: str = CALLING, template: str = "thinking") -> ScriptedEngine:
    return ScriptedEngine(script=says(answer), template=(TEMPLATES / f"{template}.jinja").read_text(), max_len=4096)


def test_the_client_gets_calls_and_reasoning() -> None:
    with listening(engine()) as port, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**ASK).choices[0]
        message = whole.message
        assert whole.finish_reason == "tool_calls" and message.content == "I look."
        assert message.model_extra and message.model_extra["reasoning_content"] == "Bern, so."
        assert message.tool_calls is not None
        functions = [call.function for call in message.tool_calls if call.type == "function"]
        assert [(f.name, f.arguments) for f in functions] == [("weather", '{"city": "Bern"}'), ("time_of", "{}")]
        with client.chat.completions.stream(**ASK) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert streamed.finish_reason == "tool_calls" and streamed.message.content == "I look."
        assert streamed.message.tool_calls is not None
        same = [call.function for call in streamed.message.tool_calls]
        assert [(f.name, f.arguments) for f in same] == [(f.name, f.arguments) for f in functions]
        ids = [call.id for call in (*message.tool_calls, *streamed.message.tool_calls)]
        assert len(set(ids)) == 4
        # What came out goes back in, with the tools' answers.
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls]
        again = {**ASK, "messages": [*ASK["messages"], message.model_dump(), *results]}
        assert client.chat.completions.create(**again).choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("change", [{"tool_choice": "none"}, {"tools": []}])
def test_without_tools_an_answer_is_text(change: dict[str, Any]) -> None:
    async def ask() -> None:
        response = await Client.of(engine()).post("/v1/chat/completions", {**ASK, **change})
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
        assert choice["message"]["content"] == CALLING.partition("</think>\n\n")[2]

    asyncio.run(ask())


def test_a_call_cut_off_by_the_limit_says_length() -> None:
    async def ask() -> None:
        limit = len(tokenizer().encode(CALLING[: CALLING.index('n"}')])) - 1  # BOS
        response = await Client.of(engine()).post("/v1/chat/completions", {**ASK, "max_tokens": limit})
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "length"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Ber'}

    asyncio.run(ask())


def test_models_say_how_they_are_read() -> None:
    async def ask() -> None:
        clients = [Client.of(engine(template=name)) for name in ("thinking", "function_syntax", "chatml")]
        bodies = [(await client.get("/v1/models")).json()["data"][0]["chat"] for client in clients]
        assert [(b["takes_tools"], b["tool_calls"] is not None, b["reasoning"]) for b in bodies] == [
            (True, True, "<think> ... </think>"),
            (True, False, None),
            (False, False, None),
        ]

    asyncio.run(ask())


def test_tools_that_the_model_would_not_hear_of_are_refused() -> None:
    async def ask() -> None:
        client = Client.of(engine(template="chatml"))
        refused = await client.post("/v1/chat/completions", ASK)
        assert refused.status == 400 and refused.json()["error"]["param"] == "tools"
        assert (await client.post("/v1/chat/completions", {**ASK, "tool_choice": "none"})).status == 200

    asyncio.run(ask())


def test_an_unknown_style_still_tells_the_model_of_its_tools() -> None:
    seen: list[Sequence[int]] = []

    def script(prompt: Sequence[int], sample: int) -> Sequence[int]:
        seen.append(prompt)
        return says('[weather(city="Bern")]')(prompt, sample)

    async def ask() -> None:
        served = engine(template="function_syntax")
        served.script = script
        response = await Client.of(served).post("/v1/chat/completions", ASK)
        choice = response.json()["choices"][0]
        assert choice["message"]["content"] == '[weather(city="Bern")]' and choice["finish_reason"] == "stop"
        assert served.tokenizer is not None and "time_of" in served.tokenizer.decode(seen[0])

    asyncio.run(ask())


def test_arguments_reach_a_template_in_the_form_that_it_wants() -> None:
    """This one reads them as text; most read an object, and the wire has text."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city":  "Bern"}'}}
    messages = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}]

    async def ask(template: str) -> str:
        prompts: list[Sequence[int]] = []

        def script(prompt: Sequence[int], sample: int) -> Sequence[int]:
            prompts.append(prompt)
            return says("x")(prompt, sample)

        served = engine(template=template)
        served.script = script
        assert (await Client.of(served).post("/v1/chat/completions", {**ASK, "messages": messages})).status == 200
        assert served.tokenizer is not None
        return served.tokenizer.decode(prompts[0])

    assert '```json\n{"city": "Bern"}\n```' in asyncio.run(ask("sections"))
    assert '"arguments": {"city": "Bern"}}' in asyncio.run(ask("hermes"))
