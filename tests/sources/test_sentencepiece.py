"""A tokenizer.model alone: ids and texts as SentencePiece's own library has them.

sentencepiece_ids.json holds what that library says of the models made here. It is no dependency; `pip install
sentencepiece`, then `python tests/sources/test_sentencepiece.py` writes the file anew.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.probe_texts import PROBES
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.sentencepiece_model import PieceType
from llmc.compiler.sources.special_tokens import decide_tokens

GOLDEN = Path(__file__).with_name("sentencepiece_ids.json")
SPACE = "\u2581"
WORDS = [
    "he",
    "ll",
    "lo",
    "hell",
    "hello",
    f"{SPACE}h",
    f"{SPACE}he",
    f"{SPACE}hello",
    "wor",
    "ld",
    "or",
    "wo",
    "12",
    "世界",
]
TEXTS = [
    *PROBES,
    "",
    "hello hello",
    "  hello  world ",
    "hellohello\n\nworld<sep>world",
    f"{SPACE}{SPACE}hello",
    "<sep>hello",
]


def field(number: int, value: int | str | bytes | float) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def piece(text: str, score: float = 0.0, kind: PieceType = PieceType.NORMAL) -> bytes:
    return field(1, field(1, text) + field(2, score) + field(3, int(kind)))


def model(
    *, unigram: bool = False, prefix: bool = True, squeeze: bool = False, fallback: bool = True, suffix: int = 0
) -> bytes:
    pieces = [piece("<unk>", kind=PieceType.UNKNOWN), piece("<s>", kind=PieceType.CONTROL)]
    pieces += [piece("</s>", kind=PieceType.CONTROL), piece("<sep>", kind=PieceType.USER_DEFINED)]
    if fallback:
        pieces += [piece(f"<0x{byte:02X}>", kind=PieceType.BYTE) for byte in range(256)]
    letters = [*WORDS, SPACE, *(chr(code) for code in range(33, 127)), "世", "界", "é"]
    pieces += [piece(text, -float(at) - 1) for at, text in enumerate(letters)]
    trainer = field(3, 1 if unigram else 2) + field(24, suffix) + field(35, int(fallback)) + field(43, -1)
    normalizer = field(1, "identity") + field(3, int(prefix)) + field(4, int(squeeze)) + field(5, 1)
    return b"".join(pieces) + field(2, trainer) + field(3, normalizer)


MODELS = {
    "llama": model(),
    "gemma": model(prefix=False),
    "squeezed": model(squeeze=True),
    "no bytes": model(fallback=False),
    "unigram": model(unigram=True),
}
LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}


@pytest.fixture
def lone(folder: Path, edit_json: Callable[..., None]) -> Callable[..., Path]:
    """lone(bytes, **tokenizer_config): the fixture's folder with a tokenizer.model and no tokenizer.json."""

    def make(data: bytes, **config: Any) -> Path:
        edit_json("config.json", vocab_size=512, bos_token_id=None, eos_token_id=2)
        edit_json("generation_config.json", eos_token_id=2)
        (folder / "tokenizer.json").unlink(missing_ok=True)
        (folder / "tokenizer.model").write_bytes(data)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_texts_are_sentencepieces_own(lone: Callable[..., Path], name: str) -> None:
    files = open_source(str(lone(MODELS[name], **LLAMA))).tokenizer
    assert files is not None
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    tokenizer.encode_special_tokens = True
    golden = json.loads(GOLDEN.read_text())[name]
    for text, (ids, decoded) in zip(TEXTS, golden, strict=True):
        # Unigram spells control tokens from their pieces; the runtime refuses such a text rather than obey it.
        if name != "unigram" or not any(control in text for control in ("<s>", "</s>", "<unk>")):
            assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        # SentencePiece shows what it does not know as a sign of its own. Where it squeezes spaces, it takes any number
        # of them from a text's beginning, which only a text that spells its own space sign can have.
        if 0 not in ids and not (name == "squeezed" and SPACE in text):
            assert tokenizer.decode(ids) == decoded


def test_special_tokens_of_a_model_that_stands_alone(lone: Callable[..., Path]) -> None:
    source = open_source(str(lone(MODELS["llama"], **LLAMA)))
    decided = decide_tokens(source)
    assert (decided.tokens.bos, decided.tokens.eos, decided.tokens.add_bos, decided.notices) == (1, (2,), True, ())
    assert source.tokenizer is not None
    assert source.tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    decided = decide_tokens(open_source(str(lone(MODELS["llama"], tokenizer_class="LlamaTokenizer"))))
    assert not decided.tokens.add_bos and "no BOS is put before a text" in decided.notices[0]


def test_placeholders_take_the_names_that_the_config_gives_them(lone: Callable[..., Path]) -> None:
    named = {"3": {"content": "<start_of_turn>", "special": True}}
    files = open_source(str(lone(MODELS["llama"], **LLAMA, added_tokens_decoder=named))).tokenizer
    assert files is not None and Tokenizer.from_str(files.tokenizer_json).token_to_id("<start_of_turn>") == 3


def test_what_cannot_be_converted_is_refused(lone: Callable[..., Path]) -> None:
    for data, said in (
        (model(suffix=1), "spaces after words"),
        (MODELS["llama"][:-3], "not a SentencePiece model"),
        (MODELS["llama"] + piece("hello"), "occurs twice"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than 64 bits"),
        (b"\x0a", "not a SentencePiece model"),
        (b"IQ== 0\nIg== 1\n", "tokenizer cannot be loaded"),  # tiktoken's form, as Llama 3's own
    ):
        with pytest.raises(SourceError, match=said):
            open_source(str(lone(data, **LLAMA)))


def write_goldens() -> None:
    import sentencepiece  # type: ignore[import-not-found]

    found = {}
    for name, data in MODELS.items():
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        found[name] = [(ids := processor.encode(text), processor.decode(ids)) for text in TEXTS]
    GOLDEN.write_text(json.dumps(found, ensure_ascii=False, indent=None) + "\n")


if __name__ == "__main__":
    sys.exit(write_goldens())
