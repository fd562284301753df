"""Which ids begin and end a text: the tokenizer's own word, other files beside it, and rows for each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.probe_texts import PROBES
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.special_tokens import DecidedTokens, decide_tokens
from llmc.runtime.artifact.manifest import SpecialTokens

Edit = Callable[..., None]
ROWS = 32  # of the fixture's model; its tokenizer has 8 tokens: <s> is 1, </s> 2, <|end|> 7


def decided(folder: Path) -> DecidedTokens:
    return decide_tokens(open_source(str(folder)))


def change_tokenizer(folder: Path, change: Callable[[Tokenizer], None]) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    change(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))


def put_before(*words: str) -> Callable[[Tokenizer], None]:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join([*words, "$A"]), special_tokens=[(word, tokenizer.token_to_id(word)) for word in words]
        )

    return change


def test_what_the_tokenizer_puts_before_a_text_is_the_bos(folder: Path, edit_json: Edit) -> None:
    """Vicuna's config.json says another one (llama#752)."""
    edit_json("config.json", bos_token_id=5)
    change_tokenizer(folder, put_before("<s>"))
    found = decided(folder)
    assert found.tokens == SpecialTokens(bos=1, eos=(2, 7), pad=None, add_bos=True)
    assert found.notices == ("BOS is 1 ('<s>'), as the tokenizer has it; the model's settings say 5 ('c')",)
    assert AutoTokenizer.from_pretrained(str(folder))("a")["input_ids"][0] == found.tokens.bos


def test_a_token_put_first_that_is_not_named_bos(folder: Path, edit_json: Edit) -> None:
    edit_json("config.json", bos_token_id=7)
    change_tokenizer(folder, put_before("<|end|>"))
    found = decided(folder)
    assert (found.tokens.bos, found.tokens.add_bos) == (7, True)
    assert found.notices == ("BOS is 7, which the tokenizer puts before a text; bos_token is 1",)


@pytest.mark.parametrize("puts", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_tokenizer_json_decides_whether_bos_is_put(folder: Path, edit_json: Edit, puts: bool, asked: bool) -> None:
    """DeepSeek's asks for one that tokenizer.json does not put: said, and done as transformers does it."""
    edit_json("tokenizer_config.json", add_bos_token=asked)
    if puts:
        change_tokenizer(folder, put_before("<s>"))
    found = decided(folder)
    assert found.tokens.add_bos == puts
    assert (AutoTokenizer.from_pretrained(str(folder))("a")["input_ids"] == [1, 3]) == puts
    said = [notice for notice in found.notices if f"add_bos_token: {json.dumps(asked)}" in notice]
    assert len(said) == (asked != puts)


def test_every_end_that_is_stated_ends_a_text(folder: Path, edit_json: Edit) -> None:
    edit_json("config.json", eos_token_id=[4, 7])
    edit_json("generation_config.json", eos_token_id=3)
    found = decided(folder)
    assert found.tokens.eos == (2, 3, 4, 7)
    assert "end of text is 2 ('</s>'), the model's settings say 3 ('a'), 4 ('b'), 7" in found.notices[0]


def test_an_end_that_only_transformers_class_has_ends_nothing(folder: Path, edit_json: Edit) -> None:
    """LlamaConfig has 2 for models that state none: here that would be an ordinary word."""
    edit_json("config.json", eos_token_id=None, bos_token_id=None)
    edit_json("generation_config.json", eos_token_id=7)
    edit_json("tokenizer_config.json", eos_token="<|end|>", bos_token=None)
    assert decided(folder).tokens == SpecialTokens(None, (7,), None, False)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).unlink()
    assert decided(folder).tokens.eos == (2,)  # nobody says anything else


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("key", "value"), [("bos_token_id", 4000), ("eos_token_id", [2, 5000]), ("pad_token_id", ROWS)]
)
def test_an_id_outside_the_vocabulary_is_refused_by_name(
    folder: Path, edit_json: Edit, name: str, key: str, value: Any
) -> None:
    edit_json(name, **{key: value})
    with pytest.raises(SourceError, match=rf"{key} is \d+, but the model has rows for ids 0\.\.31 only"):
        decided(folder)


def test_a_tokenizer_of_a_larger_model_is_refused(folder: Path) -> None:
    vocabulary = {f"w{i}": i for i in range(ROWS + 3)}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"has 35 ids, the model rows for 32: 'w32' \(32\), 'w33' \(33\)"):
        decided(folder)


def test_tokens_that_were_added_without_rows_are_named(folder: Path) -> None:
    """Fine-tunes add a [PAD] and do not resize the model (transformers gives it an id past the end)."""

    def add(tokenizer: Tokenizer) -> None:
        tokenizer.add_special_tokens([AddedToken(f"<extra{i}>", special=True) for i in range(ROWS - 8)])
        tokenizer.add_special_tokens(["[PAD]"])

    change_tokenizer(folder, add)
    found = decided(folder)
    assert found.tokens.pad is None
    assert found.notices == ("tokens that cannot be fed, the model has no row for them: '[PAD]' (32)",)
    change_tokenizer(folder, put_before("[PAD]"))
    with pytest.raises(SourceError, match=r"puts 32 \('\[PAD\]'\) before each text"):
        decided(folder)


def llama3_like() -> Tokenizer:
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*PROBES, "(hello) (world) I'LL DON'T 12 345 678 (hello"] * 20, trainer)
    return tokenizer


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer", "PreTrainedTokenizerFast"])
def test_tokenizer_json_wins_over_the_class_that_is_named(folder: Path, edit_json: Edit, name: str) -> None:
    """transformers 5 builds a tokenizer of the class's own from the vocabulary (transformers#45920)."""
    truth = llama3_like()
    truth.save(str(folder / "tokenizer.json"))
    edit_json("config.json", vocab_size=512, bos_token_id=0, eos_token_id=1)
    edit_json("generation_config.json", eos_token_id=1)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **named}))
    source = open_source(str(folder))
    assert source.tokenizer is not None
    ours = Tokenizer.from_str(source.tokenizer.tokenizer_json)
    assert [ours.encode(text).ids for text in PROBES] == [truth.encode(text).ids for text in PROBES]
    assert source.tokenizer.num_tokens == truth.get_vocab_size()
    theirs = AutoTokenizer.from_pretrained(str(folder))
    agree = all(theirs(text)["input_ids"] == truth.encode(text).ids for text in PROBES)
    assert agree == (name == "PreTrainedTokenizerFast")
    said = [f"tokenizer.json wins over {name}, which would split" in notice for notice in source.tokenizer.notices]
    assert said == [] if agree else [True]


def test_a_class_that_transformers_cannot_load_does_not_hide_tokenizer_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise ValueError("needs code of its own")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    source = open_source(str(folder))
    assert source.tokenizer is not None and source.tokenizer.num_tokens == 8
    assert "tokenizer.json is used" in source.tokenizer.notices[0]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="needs code of its own"):
        open_source(str(folder))


def test_generation_settings_that_do_nothing_or_that_nobody_knows_pass(folder: Path, edit_json: Edit) -> None:
    edit_json(
        "generation_config.json",
        frequency_penalty=0.0,
        num_beams=1,
        length_penalty=2.0,
        num_assistant_tokens_schedule="constant",
        renormalize_logits=True,
        trust_remote_code=True,
        chat_format="chatml",
        max_window_size=6144,
    )
    assert open_source(str(folder)).generation.unread == ("chat_format", "max_window_size", "trust_remote_code")


def test_generation_settings_that_the_runtime_has_are_used(folder: Path, edit_json: Edit) -> None:
    edit_json(
        "generation_config.json",
        presence_penalty=1.5,
        frequency_penalty=-0.25,
        min_new_tokens=3,
        stop_strings="\n\n",
    )
    found = open_source(str(folder)).generation
    assert (found.presence_penalty, found.frequency_penalty) == (1.5, -0.25)
    assert (found.min_new_tokens, found.stop_strings) == (3, ("\n\n",))
