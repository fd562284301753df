"""A SentencePiece model (tokenizer.model) as a tokenizer for the `tokenizers` library.

The file is a protocol buffer of sentencepiece_model.proto; the few fields that matter are read here, and transformers
builds from them what encodes like SentencePiece itself (SpmConverter.build_tokenizer_from_spm_proto). What that cannot
express is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import SpmConverter

from llmc.compiler.sources.errors import SourceError

_UNIGRAM, _BPE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    piece: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class TrainerSpec:
    """Fields and defaults of the proto, as far as they decide about ids."""

    model_type: int = _UNIGRAM
    treat_whitespace_as_suffix: bool = False
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    unk_piece: str = "<unk>"


@dataclass(frozen=True)
class NormalizerSpec:
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: tuple[Piece, ...]
    trainer_spec: TrainerSpec
    normalizer_spec: NormalizerSpec

    def token(self, index: int) -> str | None:
        """The piece of a special id; -1 is none."""
        return self.pieces[index].piece if 0 <= index < len(self.pieces) else None


def is_sentencepiece(path: Path) -> bool:
    """Whether a tokenizer.model is one of SentencePiece: some are lists of tokens, in tiktoken's form."""
    with path.open("rb") as file:
        return file.read(1) == b"\x0a"  # the first piece


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises SourceError for a file that is none."""
    try:
        return _model(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise SourceError(f"{path}: truncated or not a SentencePiece model: {error}") from error


def sentencepiece_tokenizer(model: SentencePieceModel, names: Mapping[int, str], where: Path) -> Tokenizer:
    """`names`: of ids whose piece is a placeholder. Raises SourceError for what the library cannot express."""
    spec = model.trainer_spec
    if spec.model_type not in (_UNIGRAM, _BPE) or spec.treat_whitespace_as_suffix:
        kind = "spaces after words" if spec.treat_whitespace_as_suffix else f"model type {spec.model_type}"
        raise SourceError(f"{where}: a SentencePiece model with {kind} is not supported; add its tokenizer.json")
    tokens = [names.get(index, piece.piece) for index, piece in enumerate(model.pieces)]
    if len(set(tokens)) != len(tokens):
        raise SourceError(f"{where}: a token of the SentencePiece model occurs twice")
    if spec.model_type == _BPE:
        vocabulary: object = {token: index for index, token in enumerate(tokens)}
    else:
        vocabulary = [(token, piece.score) for token, piece in zip(tokens, model.pieces, strict=True)]
    build = SpmConverter.build_tokenizer_from_spm_proto
    tokenizer: Tokenizer = build(proto=model, vocab=vocabulary)  # type: ignore[no-untyped-call]
    special = (PieceType.CONTROL, PieceType.UNKNOWN)
    added = [token for token, piece in zip(tokens, model.pieces, strict=True) if piece.type in special]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added])
    return tokenizer


def _model(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer, normalizer = TrainerSpec(), NormalizerSpec()
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
        elif number == 2:
            trainer = _trainer(_bytes(value))
        elif number == 3:
            normalizer = _normalizer(_bytes(value))
    if not pieces:
        raise ValueError("it has no pieces")
    return SentencePieceModel(tuple(pieces), trainer, normalizer)


def _piece(data: bytes) -> Piece:
    found = dict(_fields(data))
    score = struct.unpack("<f", _bytes(found[2]))[0] if 2 in found else 0.0
    return Piece(_bytes(found.get(1, b"")).decode(), score, PieceType(_integer(found.get(3, PieceType.NORMAL))))


def _trainer(data: bytes) -> TrainerSpec:
    found = dict(_fields(data))
    default = TrainerSpec()
    return TrainerSpec(
        model_type=_integer(found.get(3, default.model_type)),
        treat_whitespace_as_suffix=bool(found.get(24, default.treat_whitespace_as_suffix)),
        byte_fallback=bool(found.get(35, default.byte_fallback)),
        unk_id=_integer(found.get(40, default.unk_id)),
        bos_id=_integer(found.get(41, default.bos_id)),
        eos_id=_integer(found.get(42, default.eos_id)),
        pad_id=_integer(found.get(43, default.pad_id)),
        unk_piece=_bytes(found.get(45, default.unk_piece.encode())).decode(),
    )


def _normalizer(data: bytes) -> NormalizerSpec:
    found = dict(_fields(data))
    default = NormalizerSpec()
    return NormalizerSpec(
        precompiled_charsmap=_bytes(found.get(2, default.precompiled_charsmap)),
        add_dummy_prefix=bool(found.get(3, default.add_dummy_prefix)),
        remove_extra_whitespaces=bool(found.get(4, default.remove_extra_whitespaces)),
        escape_whitespaces=bool(found.get(5, default.escape_whitespaces)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: an integer of a varint, else the bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field ends past the {len(data)} bytes")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number at byte {at} is longer than 64 bits")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where text belongs")
    return value


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text where a number belongs")
    return value
