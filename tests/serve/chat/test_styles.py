"""Styles are learned from templates: from what they write, never from a model's name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.chat.styles import STYLES, TOOLS, arguments, model, read

JSON_TAGS = '<tool_call> {"name": ..., "arguments": {...}} </tool_call>'
THINK = "<think> ... </think>"
LEARNED: dict[str, tuple[str | None, str | None, bool]] = {
    "bare_json": ('{"name": ..., "parameters": {...}}', None, True),
    "call_list": ('[TOOL_CALLS] {"name": ..., "arguments": {...}}', None, True),
    "chatml": (None, None, False),
    "empty_section": (None, THINK, False),
    "function_syntax": (None, None, True),
    "hermes": (JSON_TAGS, None, True),
    "named": ("[TOOL_CALLS] name [ARGS] {...}", None, True),
    "named_with_id": ("[TOOL_CALLS] name [CALL_ID] id [ARGS] {...}", None, True),
    "nested_json": ('<tool_calls> {"function.name": ..., "function.arguments": {...}} </tool_calls>', None, True),
    "opened": (None, THINK, False),
    "paired": (
        "<tool_call> name <arg_key> key </arg_key> <arg_value> value </arg_value> ... </tool_call>",
        None,
        True,
    ),
    "sections": (
        "<|calls_begin|> <|call_begin|> function <|sep|> name ```json {...} ``` <|call_end|> <|calls_end|>",
        None,
        True,
    ),
    "tagged": (
        "<tool_call> <function= name > <parameter= key > value </parameter> ... </function> </tool_call>",
        None,
        True,
    ),
    "thinking": (JSON_TAGS, THINK, True),
    "thinking_blocks": (None, "[THINK] ... [/THINK]", False),
    "told_only": (JSON_TAGS, None, True),
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": 'a "quoted" {brace}\n世界 \\', "days": 3}),
    ("time_of", {"deep": {"a": [1, None, "]}"]}}),
]


def as_messages(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"id": f"call{at:05d}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate(calls)
    ]


@pytest.mark.parametrize("name", STYLES)
def test_a_style_is_what_its_template_writes(name: str) -> None:
    style = model(name).style
    described = style.describe()
    assert (described["tool_calls"], described["reasoning"], style.takes_tools) == LEARNED[name]


WORDS = "Let me see.\n\nOne moment"
WRITTEN = [
    (name, count, content)
    for name in STYLES
    for count in (1, 2)
    for content in ("", WORDS)
    if LEARNED[name][0] and name != "told_only"
    if name != "bare_json" or (count == 1 and not content)  # has one call, and nothing beside it
    if name != "call_list" or not content  # the template drops it
]


@pytest.mark.parametrize(("name", "count", "content"), WRITTEN)
def test_what_a_template_writes_is_read_back(name: str, count: int, content: str) -> None:
    """With other words than the probe's: calls that go back into a conversation are those that came out of it."""
    of = model(name)
    calls = as_messages(CALLS[:count])
    question = {"role": "user", "content": "And now?"}
    answer = {"role": "assistant", "content": content, "tool_calls": calls}
    prompt = of.template.render([question], tools=TOOLS)
    conversation = of.style.messages([question, answer])
    whole = of.template.render(conversation, add_generation_prompt=False, tools=TOOLS)
    if name == "call_list":  # tools come before the last user's message, whichever that is
        whole = whole.replace("[AVAILABLE_TOOLS][/AVAILABLE_TOOLS]", "")
    assert whole.startswith(prompt)
    text = whole.removeprefix(prompt)
    for end in ("<|im_end|>\n", "</s>", "<|eot_id|>", "<|end|>"):
        text = text.removesuffix(end)
    message = read(of, text, prompt=prompt)
    assert arguments(message) == CALLS[:count] and message.content == content
    assert len(set(message.ids)) == count and all(len(id) == 9 and id.isalnum() for id in message.ids)
    assert read(of, text, tools=(), prompt=prompt).calls == []


@pytest.mark.parametrize("name", STYLES)
def test_an_answer_of_plain_words_is_content(name: str) -> None:
    text = '  Well: {no} [call] <here>, \'nor\' "there".\n\n```json\n{"name": 1}\n```\n'
    message = read(model(name), text)
    assert message.seen == (text, "", [])
