"""Calls as models write them: what is one, what is none, and what becomes of those that break."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.chat.styles import arguments, model, read

CITY = {"city": "Bern"}
W = '{"name": "weather", "arguments": {"city": "Bern"}}'
ONE = [("weather", CITY)]
TWO = [*ONE, ("time_of", {})]

# style, answer, content, calls
GOOD: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {
    "spaces anywhere": (
        "hermes",
        '<tool_call>\n\n { "name" : "weather" ,\n"arguments":{"city":"Bern"} }\n \n</tool_call>\n',
        "",
        ONE,
    ),
    "no spaces": ("hermes", f"<tool_call>{W}</tool_call>", "", ONE),
    "arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"city": "Bern"}, "name": "weather"}</tool_call>',
        "",
        ONE,
    ),
    "other keys": (
        "hermes",
        '<tool_call>{"id": [1, {"name": "x"}], "name": "weather", "arguments": {"city": "Bern"}, "x": 0}</tool_call>',
        "",
        ONE,
    ),
    "parameters for arguments": (
        "hermes",
        '<tool_call>{"name": "weather", "parameters": {"city": "Bern"}}</tool_call>',
        "",
        ONE,
    ),
    "arguments as text": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Bern\\"}"}</tool_call>',
        "",
        ONE,
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "time_of"}</tool_call>', "", [("time_of", {})]),
    "null arguments": (
        "hermes",
        '<tool_call>{"name": "time_of", "arguments": null}</tool_call>',
        "",
        [("time_of", {})],
    ),
    "a list in the tags": (
        "hermes",
        f'<tool_call>[{W}, {{"name": "time_of", "arguments": {{}}}}]</tool_call>',
        "",
        TWO,
    ),
    "no closing tag": ("hermes", f"<tool_call>{W}", "", ONE),
    "the next call without a closing tag": (
        "hermes",
        f'<tool_call>{W}\n<tool_call>{{"name": "time_of", "arguments": {{}}}}</tool_call>',
        "",
        TWO,
    ),
    "words around": ("hermes", f"First.\n\n<tool_call>\n{W}\n</tool_call>\n\nThen.", "First.Then.", ONE),
    "words between": (
        "hermes",
        f'a<tool_call>{W}</tool_call> b <tool_call>{{"name":"time_of","arguments":{{}}}}</tool_call>c',
        "abc",
        TWO,
    ),
    "braces, quotes and tags in strings": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "}]</tool_call>{\\"\\\\"}}</tool_call>',
        "",
        [("weather", {"city": '}]</tool_call>{"\\'})],
    ),
    "escapes": (
        "hermes",
        '<tool_call>{"name": "we\\u0061ther", "arguments": {"city": "\\ud83d\\ude00\\n\\u00e9"}}</tool_call>',
        "",
        [("weather", {"city": "😀\né"})],
    ),
    "numbers and nesting": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"deep": [-1.5e+3, 0, {"a": {}, "b": []}, true]}}</tool_call>',
        "",
        [("weather", {"deep": [-1500.0, 0, {"a": {}, "b": []}, True]})],
    ),
    "a line end inside a string": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "a\n\tb"}}</tool_call>',
        "",
        [("weather", {"city": "a\n\tb"})],
    ),
    "a tool that nobody offered": (
        "hermes",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        "",
        [("other", {})],
    ),
    "bare": ("bare_json", '\n{"name": "weather", "parameters": {"city": "Bern"}}', "", ONE),
    "bare after the python tag": (
        "bare_json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Bern"}}',
        "",
        ONE,
    ),
    "bare after words and the python tag": (
        "bare_json",
        'Sure. <|python_tag|>{"name": "weather", "parameters": {"city": "Bern"}}',
        "Sure. ",
        ONE,
    ),
    "bare, one after the other": (
        "bare_json",
        '{"name": "weather", "parameters": {"city": "Bern"}}; {"name": "time_of", "parameters": {}}',
        "",
        TWO,
    ),
    "bare, in a list": (
        "bare_json",
        '[{"name": "weather", "parameters": {"city": "Bern"}}, {"name": "time_of", "parameters": {}}]',
        "",
        TWO,
    ),
    "a list": (
        "call_list",
        f'[TOOL_CALLS] [{W}, {{"name": "time_of", "arguments": {{}}, "id": "abcdefghi"}}]',
        "",
        TWO,
    ),
    "an object for a list": ("call_list", f"[TOOL_CALLS]{W}", "", ONE),
    "words before a list": ("call_list", f"Wait. [TOOL_CALLS][{W}]", "Wait.", ONE),
    "named": ("named", '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]time_of[ARGS]{}', "", TWO),
    "named, with an id": ("named_with_id", '[TOOL_CALLS]weather[CALL_ID]Ab3[ARGS] {"city": "Bern"}', "", ONE),
    "sections": (
        "sections",
        '<|calls_begin|><|call_begin|>function<|sep|>weather\n```json\n{"city": "Bern"}\n```<|call_end|>\n'
        "<|call_begin|>function<|sep|>time_of\n```json\n{}\n```<|call_end|><|calls_end|>",
        "",
        TWO,
    ),
    "no section around": (
        "sections",
        '<|call_begin|>function<|sep|>weather\n```json\n{"city": "Bern"}\n```<|call_end|>',
        "",
        ONE,
    ),
    "tags": (
        "tagged",
        "Go.\n<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call><function=time_of></function></tool_call>",
        "Go.",
        TWO,
    ),
    "values by their schema": (
        "tagged",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n"
        "<parameter=deep>\nTrue\n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", {"city": "12", "days": 12, "deep": True})],
    ),
    "a value of many lines": (
        "tagged",
        '<tool_call>\n<function=weather>\n<parameter=city>\n\n if (a < b) {\n  "x"\n }\n\n</parameter>\n'
        "</function>\n</tool_call>",
        "",
        [("weather", {"city": '\n if (a < b) {\n  "x"\n }\n'})],
    ),
    "a value that is not of its type": (
        "paired",
        "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>two</arg_value>\n</tool_call>",
        "",
        [("weather", {"days": "two"})],
    ),
    "nested": (
        "nested_json",
        '<tool_calls>[{"type": "f", "function": {"name": "weather", "arguments": {"city": "Bern"}}}]</tool_calls>',
        "",
        ONE,
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_call_is_read(case: str) -> None:
    style, answer, content, calls = GOOD[case]
    message = read(model(style), answer)
    assert arguments(message) == calls and message.content == content


# What is no call stays text, to the letter.
NO_CALLS = {
    "no JSON": ("hermes", "<tool_call>weather</tool_call>"),
    "broken before the arguments": ("hermes", '<tool_call>{"name": weather, "arguments": {}}</tool_call> and on'),
    "arguments that are a list": ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    "arguments that are no JSON": ("hermes", '<tool_call>{"name": "weather", "arguments": "x"}</tool_call>'),
    "a name that is none": ("hermes", '<tool_call>{"name": "a b", "arguments": {}}</tool_call>'),
    "no name": ("hermes", '<tool_call>{"arguments": {"city": "Bern"}}</tool_call>'),
    "a tag that is only spelled in part": ("hermes", "a <tool_ <tool_call <tool_call"),
    "too deep": ("hermes", '<tool_call>{"x": ' + "[" * 80 + "]" * 80 + ', "name": "weather"}</tool_call>'),
    "JSON that was asked for": ("bare_json", '{"name": "Bob", "parameters": {"age": 3}}'),
    "a tool's name alone": ("bare_json", '{"name": "weather"}'),
    "JSON within words": ("bare_json", 'Like this: {"name": "weather", "parameters": {}}'),
    "other JSON": ("bare_json", '[1, {"a": [2]}]\n'),
    "a brace": ("bare_json", "{"),
    "tags without a function": ("tagged", "<tool_call>\n<weather>\n</tool_call>"),
    "words where parameters belong": ("tagged", "<tool_call>\n<function=weather>\nBern\n</function>\n</tool_call>"),
    "no closing tag of a function": ("tagged", "<tool_call>\n<function=weather"),
}


@pytest.mark.parametrize("case", NO_CALLS)
def test_what_is_no_call_is_content(case: str) -> None:
    style, answer = NO_CALLS[case]
    assert read(model(style), answer).seen == (answer, "", [])


@pytest.mark.parametrize(
    ("style", "answer"),
    [
        ("call_list", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}}]'),
        ("named", '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}'),
    ],
)
def test_a_special_token_that_is_only_spelled_opens_nothing(style: str, answer: str) -> None:
    of = model(style)
    reader = of.style.reader([], of.ids(""))
    assert read(of, answer).calls
    spelled = of.tokenizer.encode(answer)  # as a model writes who quotes its user
    deltas = [*reader.feed(of.tokenizer.decode(spelled)), *reader.finish()]
    assert "".join(delta.content for delta in deltas) == answer and not reader.calls.count


def test_special_tokens_that_mean_nothing_are_left_out_and_those_that_do_are_spelled() -> None:
    assert read(model("named"), "a[INST]b[TOOL_CALLS]c d").content == "ab[TOOL_CALLS]c d"


BREAKS = {
    "JSON": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": Bern}}</tool_call> x',
        '{"city": Bern}}',
        "x",
    ),
    "named": ("named", '[TOOL_CALLS]weather[ARGS]{"city": "Bern",}', '{"city": "Bern",}', ""),
    "a special token in a string": ("named", '[TOOL_CALLS]weather[ARGS]{"city": "[INST]"}', '{"city": ""}', ""),
    "tags": (
        "tagged",
        "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\nBern\n</function>\n</tool_call>",
        '{"days": 3Bern\n',
        "",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_arguments_that_break_are_what_the_model_wrote(case: str) -> None:
    """They may be out already, so they stay a call; a client sees that they are no JSON."""
    style, answer, broken, content = BREAKS[case]
    assert read(model(style), answer).seen == (content, "", [("weather", broken)])


def test_a_list_that_breaks_after_a_call_keeps_the_call() -> None:
    message = read(model("call_list"), f"[TOOL_CALLS][{W}, oops]")
    assert arguments(message) == ONE and message.content == ", oops]"


@pytest.mark.parametrize(
    ("style", "answer"),
    [
        (
            "hermes",
            'Hm. <tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "deep": [1, {"a": 0}]}}\n</tool_call>',
        ),
        ("named", '[TOOL_CALLS]weather[ARGS]{"city": "Bern", "deep": [1, {"a": null}]}'),
        ("tagged", "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_an_answer_cut_off_anywhere_has_the_part_that_is_there(style: str, answer: str) -> None:
    """max_tokens in the middle of a call: its arguments end where the text ends, and nothing is made up."""
    of = model(style)
    whole = read(of, answer)
    for size in range(len(answer)):
        message = read(of, answer[:size])
        if message.calls:
            assert message.calls[0][0] == "weather" and whole.calls[0][1].startswith(message.calls[0][1])
            assert message.content == whole.content
        else:
            assert message.content == of.tokenizer.decode(of.tokenizer.encode(answer[:size]))


def test_arguments_stream_as_they_come() -> None:
    """Name first, then the arguments' pieces, without waiting for the call's end."""
    of = model("hermes")
    reader = of.style.reader([{"type": "function", "function": {"name": "weather"}}], [])
    got = [reader.feed(piece) for piece in ("Hi <tool", '_call>{"name": "wea', 'ther", "arguments": {"ci', 'ty": "Be')]
    assert [delta.content for delta in got[0]] == ["Hi"] and got[1] == []
    first, second = (delta.tool_call for delta in got[2])
    assert first is not None and second is not None and first.name == "weather" and second.arguments == '{"ci'
    assert [delta.tool_call and delta.tool_call.arguments for delta in got[3]] == ['ty": "Be']
    values = model("tagged").style.reader(
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}], []
    )
    values.feed("<tool_call>\n<function=f>\n<parameter=x>\n")
    assert [delta.tool_call and delta.tool_call.arguments for delta in values.feed("abc\n</par")] == ["abc"]


def test_ids_are_unique() -> None:
    of = model("hermes")
    ids = [id for _ in range(50) for id in read(of, f"<tool_call>{W}</tool_call><tool_call>{W}</tool_call>").ids]
    assert len(set(ids)) == len(ids) == 100


def test_arguments_never_hold_lone_surrogates() -> None:
    """They could not be sent."""
    text = json.dumps('{"city": "\ud800"}')
    message = read(model("hermes"), f'<tool_call>{{"name": "weather", "arguments": {text}}}</tool_call>')
    assert arguments(message) == [("weather", {"city": "\ud800"})] and message.calls[0][1].isascii()
