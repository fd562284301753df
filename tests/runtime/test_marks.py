"""Special tokens of an answer: none of its text, but told by their place in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Mark, Output
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.tokenizer import Tokenizer
from tests.runtime.sample_tokenizers import KINDS

TOKENIZERS = {name: Tokenizer(make(), SpecialTokens(None, (), None, False), {}) for name, make in KINDS.items()}


def special(tokenizer: Tokenizer) -> int:
    found = tokenizer._inner.token_to_id("<|im_start|>")
    assert isinstance(found, int)
    return found


def outputs(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[Output]:
    answer = Answer(SamplingParams(stop=stop), tokenizer)
    found: list[Output] = []
    for token in ids:
        if not found or found[-1].finish_reason is None:
            reason = FinishReason.LENGTH if len(found) == len(ids) - 1 else None
            found.append(answer.accept(token, None, reason))
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(["hello ", "世界", "👍é", "a\n", ""]), min_size=2, max_size=5))
def test_a_mark_lies_between_what_was_said_before_and_after_it(kind: str, parts: list[str]) -> None:
    """Also where the text before it is held back: the bytes of a character wait for what follows them."""
    tokenizer = TOKENIZERS[kind]
    ids: list[int] = []
    expected = []
    for part in parts:
        ids += tokenizer.encode(part)
        expected.append(Mark(len(tokenizer.decode(ids)), special(tokenizer)))
        ids.append(special(tokenizer))
    got = outputs(tokenizer, ids)
    assert [mark for output in got for mark in output.marks] == expected
    assert "".join(output.text for output in got) == tokenizer.decode(ids)


def test_text_held_for_a_stop_string_does_not_move_a_mark() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    mark = special(tokenizer)
    ids = [*tokenizer.encode("abc"), mark, *tokenizer.encode("dx"), mark]
    got = outputs(tokenizer, ids, stop=("bcdy",))
    assert [(o.text, o.marks) for o in got][2:4] == [("", ()), ("", (Mark(3, mark),))]
    assert "".join(o.text for o in got) == "abcdx"
    cut = outputs(tokenizer, ids, stop=("cd",))
    assert "".join(o.text for o in cut) == "ab" and cut[-1].finish_reason is not None
    assert [m.at for o in cut for m in o.marks] == [3]  # beyond the text: it means nothing


def test_text_that_spells_a_special_token_has_no_mark() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    got = outputs(tokenizer, tokenizer.encode("<|im_start|>"))
    assert "".join(o.text for o in got) == "<|im_start|>" and not any(o.marks for o in got)
