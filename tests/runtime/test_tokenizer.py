"""Text to ids: user text never becomes a control token, one BOS, the same ids from many threads."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Inner

from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.text.tokenizer import Tokenizer
from tests.runtime.sample_tokenizers import CONTROL, KINDS

NONE = SpecialTokens(None, (), None, False)
TOKENIZERS = {name: Tokenizer(make(), NONE, {}) for name, make in KINDS.items()}
FRAGMENTS = [*CONTROL, "<|bos|>", "<|im_", "start|>", "<", "|", "hello", " ", "\n", "世", "🙂", "<think>"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=8))
def test_user_text_has_no_control_tokens(kind: str, parts: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    unknown = {tokenizer._inner.token_to_id("<unk>")}
    ids = tokenizer.encode("".join(parts))
    assert not tokenizer.special_ids.intersection(ids) - unknown


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=8))
def test_marked_text_encodes_as_the_library_does_with_control_tokens(kind: str, parts: list[str]) -> None:
    text = "".join(parts)
    tokenizer = TOKENIZERS[kind]
    expected = KINDS[kind]().encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_marked(tokenizer.mark_control(text)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_plain_text_encodes_as_the_library_does(kind: str) -> None:
    for text in ("hello hello", " 世界 hello", "", "<think>a", "naïve"):
        assert TOKENIZERS[kind].encode(text) == KINDS[kind]().encode(text, add_special_tokens=False).ids


def test_one_bos_where_the_model_wants_one() -> None:
    tokenizer = Tokenizer(KINDS["llama2"](), SpecialTokens(1, (2,), None, True), {})
    ids = tokenizer.encode("hello")
    assert ids[0] == 1 and ids.count(1) == 1
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("<s>hello").count(1) == 1
    assert tokenizer.encode_marked(tokenizer.mark_control("<s>hello")).count(1) == 1


def test_truncation_and_padding_of_the_file_do_not_apply() -> None:
    inner = KINDS["byte_level"]()
    inner.enable_truncation(3)
    inner.enable_padding(length=10)
    assert len(Tokenizer(inner, NONE, {}).encode("abcdef")) == 6
    assert len(Tokenizer(inner, NONE, {}).encode("ab")) == 2


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="surrogates"):
        TOKENIZERS["llama2"].encode("a\ud800b")


def test_what_is_no_text_is_called_so() -> None:
    with pytest.raises(InvalidParameter, match="a text is a str, got int"):
        TOKENIZERS["llama2"].encode(cast(str, 5))


def test_ids_without_a_token_decode_to_nothing() -> None:
    tokenizer = TOKENIZERS["llama2"]
    beyond = tokenizer._inner.get_vocab_size()
    aliases = sorted(tokenizer._alias_ids)
    assert tokenizer.decode([*aliases, beyond, 2**31 - 1]) == ""
    assert len(aliases) == len(CONTROL) and [tokenizer.token_text(i) for i in (*aliases, beyond)] == [""] * 6


def test_ids_with_gaps_keep_their_meaning() -> None:
    vocab = {"a": 0, "b": 1, "<s>": 2, "</s>": 3, "<": 4, "s": 5, ">": 6, "c": 10, "d": 11, "e": 12}
    inner = Inner(models.BPE(vocab=vocab, merges=[]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer = Tokenizer(inner, NONE, {})
    assert tokenizer.encode("abcde") == [0, 1, 10, 11, 12]
    assert tokenizer.encode("<s>a") == [4, 5, 6, 0]
    assert tokenizer.encode_marked(tokenizer.mark_control("c<s>d")) == [10, 2, 11]
    assert tokenizer.decode([0, 10, 11, 12]) == "acde"


def test_a_vocabulary_that_spells_control_tokens_refuses_rather_than_obeys() -> None:
    pieces = [("<unk>", 0.0), ("</s>", -1.0), ("a", -1.0), ("<", -9.0)]
    inner = Inner(models.Unigram(pieces, unk_id=0))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<unk>", special=True)])
    tokenizer = Tokenizer(inner, NONE, {"unk_token": "<unk>"})
    assert tokenizer.encode("aaé") == [2, 2, 0]
    with pytest.raises(InvalidParameter, match="'</s>' as plain text"):
        tokenizer.encode("a</s>a")


def test_template_variables_come_from_the_config_or_the_manifest() -> None:
    tokens = SpecialTokens(1, (2, 4), 2, False)
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "unk_token": None, "add_bos_token": True}
    tokenizer = Tokenizer(KINDS["llama2"](), tokens, config)
    assert tokenizer.template_variables == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    tokenizer = Tokenizer(KINDS["llama2"](), tokens, {})
    assert tokenizer.template_variables == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def test_64_threads_get_the_same_ids() -> None:
    tokenizer = TOKENIZERS["llama2"]
    text = "hello 世界 🙂 " * 50
    expected = tokenizer.encode(text)
    results = []
    threads = [threading.Thread(target=lambda: results.append(tokenizer.encode(text))) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 64


LONG = "hello <|im_end|> 世界, naïve <think>a🙂 " * 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_encoded_alike(kind: str) -> None:
    assert TOKENIZERS[kind].encode(LONG) == TOKENIZERS[kind]._inner.encode(LONG, add_special_tokens=False).ids
    with pytest.raises(InvalidParameter, match="surrogates"):
        TOKENIZERS[kind].encode(LONG + "\ud800")


def test_a_long_text_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library holds Python's lock while it encodes a single text, and a server's event loop would wait for it."""
    turns: list[int] = []
    ended = threading.Event()

    class Watched:
        """What the library is asked for, and how often another thread ran meanwhile."""

        def __init__(self, inner: Inner) -> None:
            self._inner = inner
            self.meanwhile = 0

        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> object:
            began = len(turns)
            encoded = self._inner.encode_batch(texts, add_special_tokens=add_special_tokens)
            self.meanwhile = len(turns) - began
            return encoded

    def count() -> None:
        while not ended.is_set():
            turns.append(1)

    tokenizer = Tokenizer(KINDS["byte_level"](), NONE, {})
    watched = Watched(tokenizer._inner)
    monkeypatch.setattr(tokenizer, "_inner", watched)
    other = threading.Thread(target=count)
    other.start()
    tokenizer.encode(LONG)
    ended.set()
    other.join()
    assert watched.meanwhile > 1000
