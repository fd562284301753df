"""Small vocabularies whose merges cross every place where a text may be split, as GGUF files without a model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from llmc.compiler.sources.gguf.roles import TokenType
from llmc.compiler.sources.gguf.spm_merges import pairs_of

TRAINED = Path(__file__).with_name("trained.json")

FIRST_ROLE = 258

_NORMAL, _UNKNOWN, _CONTROL, _USER = TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED
_FIRST = {"<unk>": _UNKNOWN, "<s>": _CONTROL, "</s>": _CONTROL}
_MORE = {
    "<|im_start|>": _CONTROL,
    "<|im_end|>": _CONTROL,
    "<\uff5cUser\uff5c>": _CONTROL,
    "<\uff5cAssistant\uff5c>": _CONTROL,
    "<mask>": _CONTROL,
    "<think>": _USER,
    "  <|spaced|>": _USER,
}


@dataclass(frozen=True)
class Vocabulary:
    """What the file says, keys without `tokenizer.ggml.` but for those that start with `general.`."""

    model: str
    types: Mapping[str, TokenType]
    """Of each token, in the order of ids."""
    merges: Sequence[tuple[str, str]] | None = None
    scores: Sequence[float] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def train(texts: Sequence[str]) -> dict[str, Any]:
    """Merges of bytes, and tokens of an SPM vocabulary by falling score, learned from texts that nothing split."""
    in_bytes = Tokenizer(models.BPE())
    in_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    of_characters = Tokenizer(models.BPE())
    found: dict[str, Any] = {}
    for name, tokenizer, corpus in (
        ("merges", in_bytes, texts),
        ("pieces", of_characters, [text.replace(" ", "\u2581") for text in texts]),
    ):
        trainer = trainers.BpeTrainer(vocab_size=900, max_token_length=16, min_frequency=2, show_progress=False)
        tokenizer.train_from_iterator(corpus, trainer)
        found[name] = json.loads(tokenizer.to_str())["model"]["merges"]
    pieces = dict.fromkeys(left + right for left, right in found["pieces"])
    characters = sorted({character for text in texts for character in text.replace(" ", "\u2581")} - {"\uff76"})
    found["pieces"] = list(dict.fromkeys([*pieces, *characters]))
    return found


def byte_level(pre: str = "gpt-2", **metadata: Any) -> Vocabulary:
    """Merges of bytes, and two words that no merges lead to."""
    merges = [(left, right) for left, right in json.loads(TRAINED.read_text())["merges"]]
    made = (left + right for left, right in merges)
    types = _FIRST | dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()), _NORMAL)
    types |= dict.fromkeys((token for token in made if token not in _FIRST), _NORMAL)
    types |= dict.fromkeys(("kuchyz", "\u0120zdravy"), _NORMAL) | _MORE
    stated = {"pre": pre, "bos_token_id": 1, "eos_token_id": 2, **metadata}
    return Vocabulary("gpt2", types, merges=merges, metadata=stated)


def spm(**metadata: Any) -> Vocabulary:
    """Unknown, control and byte tokens, then pieces."""
    pieces = [piece for piece in json.loads(TRAINED.read_text())["pieces"] if piece not in _FIRST | _MORE]
    types = _FIRST | {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
    scores = [0.0] * len(types) + [-float(rank) for rank in range(len(pieces))] + [-1000.0] * len(_MORE)
    types |= dict.fromkeys(pieces, _NORMAL) | _MORE
    return Vocabulary("llama", types, scores=scores, metadata={"bos_token_id": 1, "eos_token_id": 2, **metadata})


def spm_as_bpe(pre: str | None, model: str = "gpt2", **metadata: Any) -> Vocabulary:
    """The pieces again, with merges in place of scores."""
    base = spm(**metadata)
    pieces = [token for token, kind in base.types.items() if kind is _NORMAL]
    merges = [pair for piece in pieces for pair in pairs_of(piece, set(pieces))]
    stated = {**base.metadata, **({} if pre is None else {"pre": pre})}
    return replace(base, model=model, merges=merges, scores=None, metadata=stated)


def with_roles(types: Mapping[str, TokenType], **metadata: Any) -> Vocabulary:
    """Bytes, one more, an end, and these tokens from FIRST_ROLE on."""
    alphabet = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()), _NORMAL)
    stated = {"pre": "gpt-2", "eos_token_id": FIRST_ROLE - 1, **metadata}
    return Vocabulary("gpt2", {**alphabet, "ab": _NORMAL, "<e>": _CONTROL, **types}, [("a", "b")], metadata=stated)


def write(vocabulary: Vocabulary, path: Path) -> None:
    """A GGUF with nothing but the vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(list(vocabulary.types))
    writer.add_token_types([int(kind) for kind in vocabulary.types.values()])
    if vocabulary.merges is not None:
        writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    if vocabulary.scores is not None:
        writer.add_token_scores(list(vocabulary.scores))
    for key, value in vocabulary.metadata.items():
        full = key if key.startswith("general.") else f"tokenizer.ggml.{key}"
        match value:
            case bool():
                writer.add_bool(full, value)
            case int():
                writer.add_uint32(full, value)
            case _:
                writer.add_string(full, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
