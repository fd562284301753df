"""Reasoning is split off where the template marks it off, whether the model or the prompt opens it."""

from __future__ import annotations

import pytest

from tests.serve.chat.styles import model, read

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'

# style, end of the prompt, answer, reasoning, content
CASES = {
    "opened by the model": ("thinking", "", "<think>\nHm, so.\n\n</think>\n\nYes.\n", "Hm, so.", "Yes.\n"),
    "opened by the prompt": ("opened", "<think>\n", "Hm, so.\n</think>\n\nYes.", "Hm, so.", "Yes."),
    "opened by both": ("opened", "", "<think>a</think>b", "a", "b"),
    "none": ("thinking", "", "Yes <think>no</think>", "", "Yes <think>no</think>"),
    "closed by the prompt": ("thinking", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    "empty": ("thinking", "", "<think>\n\n</think>\n\nYes.", "", "Yes."),
    "never closed": ("opened", "<think>\n", "Hm, so ", "Hm, so", ""),
    "closing tags in part": ("opened", "<think>", "a </thin </ </think>b", "a </thin </", "b"),
    "special tokens": ("thinking_blocks", "", "[THINK]a [INST]b[/THINK]c", "a b", "c"),
    "an empty section shows the tags": ("empty_section", "", "<think>a</think>b", "a", "b"),
}


@pytest.mark.parametrize("case", CASES)
def test_reasoning_comes_apart_from_content(case: str) -> None:
    style, prompt, answer, reasoning, content = CASES[case]
    assert read(model(style), answer, prompt=prompt).seen == (content, reasoning, [])


@pytest.mark.parametrize("case", CASES)
def test_reasoning_may_stay_in_the_content(case: str) -> None:
    style, prompt, answer, _, _ = CASES[case]
    expected = answer.replace("[INST]", "")
    assert read(model(style, split_reasoning=False), answer, prompt=prompt).seen == (expected, "", [])


def test_calls_while_reasoning_are_none() -> None:
    of = model("thinking")
    message = read(of, f"<think>\nMaybe {CALL}?\n</think>\n\n{CALL}")
    assert message.reasoning == f"Maybe {CALL}?" and [name for name, _ in message.calls] == ["weather"]
    assert read(of, f"{CALL}</think>", prompt="<think>\n").seen == ("", CALL, [])
    kept = read(model("thinking", split_reasoning=False), f"<think>{CALL}</think>{CALL}")
    assert kept.content == f"<think>{CALL}</think>" and len(kept.calls) == 1


def test_what_a_user_writes_at_the_end_of_a_prompt_opens_nothing() -> None:
    """The template goes on after it."""
    of = model("thinking_blocks")
    prompt = of.template.encode([{"role": "user", "content": "[THINK]"}])
    reader = of.style.reader([], prompt)
    assert [delta.content for delta in reader.feed("Yes.")] == ["Yes."]
