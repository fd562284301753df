"""The tokenizer that a GGUF's metadata makes, against llama.cpp's own ids (tests/llamacpp_oracle, stored)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llamacpp_oracle import cases, vocabularies
from tokenizers import Tokenizer

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.reading import HeaderReader
from llmc.compiler.sources.gguf.roles import TokenType
from llmc.compiler.sources.gguf.splits import PRES
from llmc.compiler.sources.gguf.tokenizer import tokenizer_files
from llmc.compiler.sources.gguf.vocabulary import Vocabulary, read_vocabulary
from llmc.compiler.sources.tokenizer import TokenizerFiles

GOLDENS: dict[str, Any] = json.loads(Path(vocabularies.__file__).with_name("goldens.json").read_text())
TEXTS: list[str] = GOLDENS["texts"]
CASES = cases.cases()
BYTES_SPELLED_OUT = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}


def read(written: vocabularies.Vocabulary, folder: Path) -> tuple[Vocabulary, dict[str, Any]]:
    path = folder / "vocabulary.gguf"
    vocabularies.write(written, path)
    reader = HeaderReader(path)
    metadata = reader.scalars()
    vocabulary = read_vocabulary(reader, metadata, path)
    assert vocabulary is not None
    return vocabulary, metadata


def files(written: vocabularies.Vocabulary, folder: Path) -> tuple[Vocabulary, TokenizerFiles]:
    vocabulary, metadata = read(written, folder)
    return vocabulary, tokenizer_files(vocabulary, metadata, folder)


def refusal(written: vocabularies.Vocabulary, folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        files(written, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def agree(tokenizer_json: str, texts: Sequence[str], expected: Sequence[Sequence[int]]) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    found = [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        assert ours == list(theirs), (text, *([tokenizer.id_to_token(i) for i in ids] for ids in (ours, theirs)))


def test_every_pre_that_llama_cpp_knows_splits_as_it_does(tmp_path: Path) -> None:
    """Names that share a rule are encoded once. No two rules give the same ids throughout: a wrong one would show."""
    answers, chosen = GOLDENS["pre"]["answers"], GOLDENS["pre"]["chosen"]
    assert chosen.keys() == PRES.keys() - BYTES_SPELLED_OUT
    vocabulary, metadata = read(vocabularies.byte_level(), tmp_path)
    rules = {(replace(PRES[name], add_bos=False), tuple(picks)) for name, picks in chosen.items()}
    assert len({picks for _, picks in rules}) == len({rule for rule, _ in rules}) == len(rules)
    for rule, picks in rules:
        made = tokenizer_files(replace(vocabulary, pre=rule), metadata, tmp_path)
        agree(made.tokenizer_json, TEXTS, [given[pick] for given, pick in zip(answers, picks, strict=True)])
    assert sorted(name for name in chosen if PRES[name].add_bos) == GOLDENS["add_bos"]


@pytest.mark.parametrize("name", CASES)
def test_what_a_file_says_beside_it(name: str, tmp_path: Path) -> None:
    """Ids, ends, BOS, and what the ids decode to."""
    case, golden = CASES[name], GOLDENS["cases"][name]
    vocabulary, made = files(case.vocabulary, tmp_path)
    agree(made.tokenizer_json, case.texts, golden["ids"])
    assert list(vocabulary.ends) == golden["ends"]
    assert made.add_bos is golden["add_bos"]
    tokenizer = Tokenizer.from_str(made.tokenizer_json)
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(case.vocabulary.types)}
    pieces = [bytes.fromhex(piece) for piece in golden["pieces"].split(" ")]
    for ids in golden["ids"]:
        text = b"".join(pieces[token] for token in ids).decode("utf-8", "replace")
        assert tokenizer.decode(ids) == (text.removeprefix(" ") if vocabulary.add_space_prefix else text)


BPE, SPM = vocabularies.byte_level(), vocabularies.spm()
NEWLINES = {**vocabularies.spm_as_bpe("gemma4").types, "\n" * 11: TokenType.NORMAL}


def changed(base: vocabularies.Vocabulary, model: str | None = None, **metadata: Any) -> vocabularies.Vocabulary:
    stated = {key: value for key, value in {**base.metadata, **metadata}.items() if value is not None}
    return replace(base, model=model or base.model, metadata=stated)


REFUSED: dict[str, tuple[vocabularies.Vocabulary, str]] = {
    "another kind": (changed(SPM, "t5"), "tokenizer.ggml.model = 't5' (the Unigram of encoder-decoders)"),
    "an unknown kind": (changed(SPM, "warp"), "tokenizer.ggml.model = 'warp' (unknown)"),
    "an unknown split": (changed(BPE, pre="warp"), "tokenizer.ggml.pre = 'warp' is unknown"),
    "a split of encoders": (changed(BPE, pre="mmbert"), "tokenizer.ggml.pre = 'mmbert' is of embedding models"),
    "no split": (changed(BPE, pre=None), "no tokenizer.ggml.pre"),
    "an end after the text": (changed(BPE, add_eos_token=True), "add_eos_token"),
    "a BOS without id": (changed(BPE, add_bos_token=True, bos_token_id=None), "no tokenizer.ggml.bos_token_id"),
    "an id without token": (changed(SPM, eos_token_id=5000), "tokenizer.ggml.eos_token_id = 5000"),
    "an unknown key": (changed(SPM, suppress_tokens="x"), "tokenizer.ggml.suppress_tokens is not supported"),
    "no merges": (replace(BPE, merges=None), "no tokenizer.ggml.merges"),
    "merges of nothing": (replace(BPE, merges=[("a", "warp")]), "merge 'a' 'warp' is of or makes what is no token"),
    "no scores": (replace(SPM, scores=None), "0 scores"),
    "too few scores": (replace(SPM, scores=[0.0]), "1 scores"),
    "one score for all": (replace(SPM, scores=[0.0] * len(SPM.types)), "have one score, 0"),
    "no byte tokens": (
        replace(SPM, types={token.lower(): kind for token, kind in SPM.types.items()}, scores=SPM.scores),
        "no token <0x",
    ),
    "newlines without merges": (
        replace(vocabularies.spm_as_bpe("gemma4"), types=NEWLINES),
        "no merges lead to token 1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_said_exactly_is_refused(what: str, tmp_path: Path) -> None:
    written, expected = REFUSED[what]
    message = refusal(written, tmp_path)
    assert expected in message and "build from the model's HuggingFace folder" in message


def test_a_token_of_characters_that_are_none_is_refused(tmp_path: Path) -> None:
    types = {**SPM.types, "a\u0416": TokenType.NORMAL}
    del types["\u0416"]
    assert "made of characters that are no tokens" in refusal(
        replace(SPM, types=types, scores=[-float(i) for i in range(len(types))]), tmp_path
    )


def test_two_tokens_of_one_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    vocabularies.write(replace(BPE, types={**BPE.types, "twin1": TokenType.NORMAL, "twin2": TokenType.NORMAL}), path)
    path.write_bytes(path.read_bytes().replace(b"twin2", b"twin1"))
    reader = HeaderReader(path)
    with pytest.raises(SourceError, match=r"tokens \d+ and \d+ are both 'twin1'"):
        read_vocabulary(reader, reader.scalars(), path)


@pytest.mark.parametrize("model", ["none", "no_vocab"])
def test_a_file_may_say_that_it_has_no_tokenizer(model: str, tmp_path: Path) -> None:
    vocabularies.write(replace(SPM, model=model), tmp_path / "m.gguf")
    reader = HeaderReader(tmp_path / "m.gguf")
    assert read_vocabulary(reader, reader.scalars(), tmp_path) is None


def test_falcons_end_is_the_one_that_old_files_leave_out(tmp_path: Path) -> None:
    types = {"<|endoftext|>" if i == 11 else token: kind for i, (token, kind) in enumerate(BPE.types.items())}
    types["<|endoftext|>"] = TokenType.CONTROL
    merges = [pair for pair in BPE.merges or () if {*pair, "".join(pair)} <= types.keys()]
    old = changed(replace(BPE, types=types, merges=merges), pre="falcon", bos_token_id=None, eos_token_id=None)
    vocabulary, made = files(old, tmp_path)
    assert (made.bos, made.eos, made.add_bos) == (11, 11, False)
    assert 11 in vocabulary.ends
