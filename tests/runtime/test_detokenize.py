"""Streaming: pieces join to the full decode, split no character, and come as soon as they can."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_tokenizers import KINDS

from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.text.detokenize import StreamDetokenizer
from llmc.runtime.text.tokenizer import Tokenizer

NONE = SpecialTokens(None, (), None, False)
TOKENIZERS = {name: Tokenizer(make(), NONE, {}) for name, make in KINDS.items()}
TEXTS = [
    "hello world",
    "日本語の文 世界",
    "👨‍👩‍👧‍👦 family 🇩🇪",
    "naïve café\n\n  two",
    "a\ufffdb",
    "   ",
    "\t\x00é",
    "مرحبا",
]


def stream(tokenizer, ids):
    detokenizer = StreamDetokenizer(tokenizer)
    return [*(detokenizer.add(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_pieces_of_random_ids_join_to_the_full_decode(kind, data):
    tokenizer = TOKENIZERS[kind]
    token = st.integers(0, tokenizer._inner.get_vocab_size() + 3)
    byte = st.sampled_from(sorted(tokenizer.byte_ids)) if tokenizer.byte_ids else token
    ids = data.draw(st.lists(token | byte, max_size=24))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20) | st.sampled_from(TEXTS))
def test_no_character_of_a_text_is_split(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids)
    whole = tokenizer.decode(ids)
    assert "".join(pieces) == whole
    assert sum(piece.count("\ufffd") for piece in pieces) == whole.count("\ufffd")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=st.sampled_from(TEXTS), cut=st.integers(0, 60))
def test_an_answer_cut_anywhere_joins_to_the_decode_of_what_there_is(kind, text, cut):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)[:cut]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_characters_are_not_held_back(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("hello, hello hello.")
    detokenizer = StreamDetokenizer(tokenizer)
    shown = ""
    for count, token in enumerate(ids, 1):
        shown += detokenizer.add(token)
        assert shown == tokenizer.decode(ids[:count])


def test_a_run_of_byte_tokens_waits_for_its_end():
    tokenizer = TOKENIZERS["gemma"]
    emoji = [tokenizer._inner.token_to_id(f"<0x{b:02X}>") for b in "👍".encode()]
    word = tokenizer._inner.token_to_id("hello")
    assert stream(tokenizer, [word, *emoji, word]) == ["hello", "", "", "", "", "👍hello", ""]
    # One byte too many spoils the whole run, in the full decode too.
    assert "".join(stream(tokenizer, [*emoji, emoji[0], word])) == "\ufffd" * 5 + "hello"


def test_garbage_bytes_come_out_one_behind():
    tokenizer = TOKENIZERS["byte_level"]
    bad = tokenizer._inner.token_to_id("ÿ")  # byte 0xFF
    assert stream(tokenizer, [bad] * 4) == ["", "\ufffd", "\ufffd", "\ufffd", "\ufffd"]


def test_ids_that_no_token_has_do_not_cost_the_next_word_its_space():
    tokenizer = TOKENIZERS["llama2"]
    gap = tokenizer._inner.get_vocab_size() + 9
    hello = tokenizer._inner.token_to_id("▁hello")
    assert stream(tokenizer, [hello, gap, gap, hello, gap]) == ["hello", "", "", " hello", "", ""]


def test_special_tokens_are_silent_and_split_nothing():
    tokenizer = TOKENIZERS["llama2"]
    ids = tokenizer.encode("hello hello")
    control = tokenizer._inner.token_to_id("<|im_end|>")
    mixed = [control, *(x for token in ids for x in (token, control))]
    assert "".join(stream(tokenizer, mixed)) == "hello hello"


def text_after(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    """What transformers' text-generation pipeline shows: the decode of all less that of the prompt."""
    whole, before = tokenizer.decode([*prompt, *answer]), tokenizer.decode(prompt)
    while not whole.startswith(before):  # its last character was not complete
        before = before[:-1]
    return whole[len(before) :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_an_answer_is_what_it_adds_to_the_prompts_text(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    token = st.integers(0, tokenizer._inner.get_vocab_size() + 3).filter(lambda id: id not in tokenizer.byte_ids)
    prompt = data.draw(st.lists(token, max_size=8) | st.sampled_from(TEXTS).map(tokenizer.encode))
    byte = st.sampled_from(sorted(tokenizer.byte_ids)) if tokenizer.byte_ids else token
    # One byte too many would spoil a run of bytes at the prompt's end, whose text is out already.
    answer = data.draw(st.lists(token, max_size=1).flatmap(lambda first: st.lists(token | byte).map(first.__add__)))
    ends_in_bytes = any(t in tokenizer.byte_ids for t in prompt)
    if ends_in_bytes and answer[:1] and answer[0] in tokenizer.byte_ids:
        answer = answer[1:]
        answer = [t for t in answer if t not in tokenizer.byte_ids]
    detokenizer = StreamDetokenizer(tokenizer, prompt)
    pieces = [*(detokenizer.add(t) for t in answer), detokenizer.finish()]
    assert "".join(pieces) == text_after(tokenizer, prompt, answer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", range(1, 12))
def test_text_that_is_cut_into_prompt_and_answer_joins_again(kind: str, cut: int) -> None:
    """Words keep their space, and a character that the cut goes through comes out once."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("hello hello 世界 日本 é")
    detokenizer = StreamDetokenizer(tokenizer, ids[:cut])
    answer = "".join([*(detokenizer.add(t) for t in ids[cut:]), detokenizer.finish()])
    assert tokenizer.decode(ids[:cut]).rstrip("\ufffd") + answer == tokenizer.decode(ids)


def test_the_first_word_of_a_continuation_keeps_its_space() -> None:
    tokenizer = TOKENIZERS["llama2"]
    hello, control = (tokenizer._inner.token_to_id(t) for t in ("▁hello", "<|im_end|>"))
    assert StreamDetokenizer(tokenizer, [hello]).add(hello) == " hello"
    assert StreamDetokenizer(tokenizer, [hello, control]).add(hello) == " hello"
    assert StreamDetokenizer(tokenizer, [control]).add(hello) == "hello"  # a text begins
