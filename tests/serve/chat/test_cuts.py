"""However an answer is cut into pieces, it is read as the same message; and nothing is let out too early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.loop.results import Mark
from llmc.serve.protocol.delta import Tool
from tests.serve.chat.styles import STYLES, TOOLS, Message, Model, model, outputs

# What answers are made of, right, wrong and in part.
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<function=weather>",
    "</function>",
    "<parameter=city>\n",
    "\n</parameter>",
    "<arg_key>days</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<tool_calls>",
    '{"name": "weather", "arguments": {"city": "Bern"}}',
    '{"name": "time_of", "parameters": ',
    '{"function": {"name": "weather", "arguments": "{}"}}',
    '{"city": "B\\u00e9 }\\" {"}',
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "weather",
    "<|calls_begin|>",
    "<|call_begin|>function<|sep|>",
    "\n```json\n",
    "\n```<|call_end|>",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "<",
    "\n",
    " ",
    "é世",
    "12",
    "null",
]
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)


def in_one(of: Model, text: str, marks: Sequence[Mark], tools: Sequence[Tool]) -> Message:
    reader = of.style.reader(tools, [])
    return Message().add([*reader.feed(text, marks), *reader.finish()])


@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=25, deadline=None)
@given(answer=ANSWERS, tools=st.sampled_from([TOOLS, TOOLS, []]), data=st.data())
def test_pieces_do_not_matter(name: str, answer: str, tools: Sequence[Tool], data: st.DataObject) -> None:
    of = model(name)
    steps = outputs(of, answer)
    text = "".join(step.text for step in steps)
    marks = [mark for step in steps for mark in step.marks]
    whole = in_one(of, text, marks, tools)
    # Token by token, as an engine gives it.
    reader, streamed = of.style.reader(tools, []), Message()
    for step in steps:
        streamed.add(reader.feed(step.text, step.marks))
    assert streamed.add(reader.finish()).seen == whole.seen
    # And in any pieces; marks come with the piece before their place, or earlier.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    reader, cut = of.style.reader(tools, []), Message()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        here = [mark for mark in marks if mark.at <= end]
        marks = marks[len(here) :]
        cut.add(reader.feed(text[start:end], here))
    assert cut.add(reader.finish()).seen == whole.seen


@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=25, deadline=None)
@given(answer=ANSWERS, data=st.data())
def test_what_is_out_stays_whatever_follows(name: str, answer: str, data: st.DataObject) -> None:
    """The message of a part is a beginning of the message of the whole, as far as it was streamed."""
    of = model(name)
    steps = outputs(of, answer)
    size = data.draw(st.integers(0, len(steps)))
    reader, part = of.style.reader(TOOLS, []), Message()
    for step in steps[:size]:
        part.add(reader.feed(step.text, step.marks))
    so_far = Message(part.content, part.reasoning, list(part.calls))
    for step in steps[size:]:
        part.add(reader.feed(step.text, step.marks))
    part.add(reader.finish())
    assert part.content.startswith(so_far.content) and part.reasoning.startswith(so_far.reasoning)
    pairs = zip(so_far.calls, part.calls, strict=False)
    assert len(so_far.calls) <= len(part.calls)
    assert all(name == now and more.startswith(some) for (name, some), (now, more) in pairs)


@pytest.mark.parametrize("name", [name for name in STYLES if name not in ("opened",)])
@settings(max_examples=25, deadline=None)
@given(answer=ANSWERS)
def test_without_tools_and_reasoning_all_is_content(name: str, answer: str) -> None:
    of = model(name, split_reasoning=False)
    reader, message = of.style.reader([], []), Message()
    steps = outputs(of, answer)
    for step in steps:
        message.add(reader.feed(step.text, step.marks))
    message.add(reader.finish())
    known = {token: of.style.alphabet.written(of.style.alphabet.symbol(token)) for token in of.tokenizer.special_ids}
    text, last = "", 0
    plain = "".join(step.text for step in steps)
    for mark in (mark for step in steps for mark in step.marks):
        text, last = text + plain[last : mark.at] + known[mark.token_id], mark.at
    assert message.seen == (text + plain[last:], "", [])
