"""A GGUF's vocabulary as its metadata states it, with llama.cpp's defaults where it is silent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.reading import HeaderReader
from llmc.compiler.sources.gguf.roles import TokenType, settle_roles
from llmc.compiler.sources.gguf.splits import PRES, Pre

_PREFIX = "tokenizer.ggml."
_NO_TOKENIZER = ("none", "no_vocab")
_REFUSED = {
    "bert": "WordPiece, which encoders use",
    "t5": "the Unigram of encoder-decoders",
    "rwkv": "RWKV's own tokenizer",
    "plamo2": "PLaMo 2's own tokenizer",
    "hybriddna": "a tokenizer of DNA",
    "whitespace": "a splitter of embedding models",
}
_EMBEDDING_PRES = ("mmbert", "whitespace")  # whose splits are code, not expressions

# `tokenizer.ggml.NAME_token_id` -> the role's name in roles.py and in chat templates
_ROLES = {
    "unknown": "unk",
    "seperator": "sep",
    "padding": "pad",
    "prefix": "fim_pre",
    "suffix": "fim_suf",
    "middle": "fim_mid",
}
_KNOWN = frozenset(
    (
        *("model", "pre", "tokens", "token_type", "token_type_count", "scores", "merges"),
        *("add_bos_token", "add_eos_token", "add_space_prefix"),
        *("add_sep_token", "remove_extra_whitespaces", "precompiled_charsmap"),  # of kinds that are refused
    )
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and how text becomes ids."""

    pre: Pre | None
    """The split before BPE; None: an SPM vocabulary, where scores order the merges."""
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    ids: Mapping[str, int]
    scores: NDArray[np.float32]
    """Of SPM, else empty."""
    merges: tuple[tuple[str, str], ...]
    """Of BPE, else empty."""
    roles: Mapping[str, int]
    """bos, eos, unk, pad and whatever else the file names."""
    ends: tuple[int, ...]
    """Every id that ends a text, ascending."""
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    """SPM: whether a space goes before a text, and before what follows a control token."""


def read_vocabulary(reader: HeaderReader, metadata: Mapping[str, Any], where: Path) -> Vocabulary | None:
    """None: the file says that it has none. Raises SourceError for what is unknown, inconsistent or not supported."""
    kind = metadata.get(_PREFIX + "model")
    if kind in _NO_TOKENIZER:
        return None
    pre = _pre(kind, metadata, where)
    _refuse_unknown_keys(reader.fields, where)
    try:
        return _vocabulary(reader, metadata, kind, pre)
    except ValueError as error:  # an array of another type, one that is missing or too short, no UTF-8
        raise SourceError(f"{where}: the vocabulary cannot be used: {error}; {INSTEAD}") from error


def _pre(kind: object, metadata: Mapping[str, Any], where: Path) -> Pre | None:
    if kind == "llama":
        return None
    if kind not in ("gpt2", "gemma4"):
        what = _REFUSED.get(str(kind), "unknown")
        raise SourceError(f"{where}: {_PREFIX}model = {kind!r} ({what}) is not supported; {INSTEAD}")
    name = "gemma4" if kind == "gemma4" else metadata.get(_PREFIX + "pre")
    if not name:
        raise SourceError(
            f"{where}: no {_PREFIX}pre, which says how text is split into words; convert the model again, "
            "set the key (gguf_new_metadata.py --pre-tokenizer), or " + INSTEAD
        )
    if (pre := PRES.get(name)) is None:
        what = "of embedding models, not supported" if name in _EMBEDDING_PRES else "unknown"
        raise SourceError(f"{where}: {_PREFIX}pre = {name!r} is {what}, so how text is split is not known; {INSTEAD}")
    return pre


def _refuse_unknown_keys(keys: Iterable[str], where: Path) -> None:
    for key in keys:
        name = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and name not in _KNOWN and not name.endswith("_token_id"):
            raise SourceError(f"{where}: metadata {key} is not supported; {INSTEAD}")


def _vocabulary(reader: HeaderReader, metadata: Mapping[str, Any], kind: object, pre: Pre | None) -> Vocabulary:
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(reader.strings(_PREFIX + "tokens") or ()))
    types = _types(reader, len(tokens))
    ids = _ids(tokens)
    roles = _roles(metadata, kind, types)
    ends = settle_roles(ids, types, roles)
    return Vocabulary(
        pre=pre,
        tokens=tokens,
        types=tuple(types),
        ids=ids,
        scores=_scores(reader, len(tokens)) if pre is None else np.zeros(0, np.float32),
        merges=() if pre is None else _merges(reader),
        roles=roles,
        ends=ends,
        add_bos=_add_bos(metadata.get(_PREFIX + "add_bos_token"), pre),
        add_eos=bool(metadata.get(_PREFIX + "add_eos_token", False)),
        add_space_prefix=pre is None and bool(metadata.get(_PREFIX + "add_space_prefix", True)),
    )


def _add_bos(stated: object, pre: Pre | None) -> bool:
    if pre is not None and pre.always_bos:
        return True
    return bool(stated) if stated is not None else pre is None or pre.add_bos


def _types(reader: HeaderReader, count: int) -> list[TokenType]:
    stated = reader.numbers(_PREFIX + "token_type", GGUFValueType.INT32, GGUFValueType.UINT32)
    if stated is None:
        return [TokenType.NORMAL] * count
    if len(stated) < count:
        raise ValueError(f"{count} tokens but {len(stated)} types")
    by_number = {int(kind): kind for kind in TokenType}
    return [by_number.get(number, TokenType.UNDEFINED) for number in stated[:count].tolist()]


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    if not tokens:
        raise ValueError(f"no {_PREFIX}tokens")
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if (first := ids.setdefault(token, index)) != index:
            raise ValueError(f"tokens {first} and {index} are both {token!r}")
    return ids


def _scores(reader: HeaderReader, count: int) -> NDArray[np.float32]:
    stated = reader.numbers(_PREFIX + "scores", GGUFValueType.FLOAT32, GGUFValueType.INT32)
    if stated is None or len(stated) < count:
        raise ValueError(f"{count} tokens but {0 if stated is None else len(stated)} scores")
    return stated[:count].astype(np.float32)


def _merges(reader: HeaderReader) -> tuple[tuple[str, str], ...]:
    """In order of rank, each once. A part may begin with the space that separates them."""
    stated = reader.strings(_PREFIX + "merges")
    if stated is None:
        raise ValueError(f"no {_PREFIX}merges")
    pairs: dict[tuple[str, str], None] = {}
    for merge in stated:
        if (cut := merge.find(" ", 1)) < 0:
            raise ValueError(f"merge {merge!r} is no pair")
        pairs[merge[:cut], merge[cut + 1 :]] = None
    return tuple(pairs)


def _roles(metadata: Mapping[str, Any], kind: object, types: Sequence[TokenType]) -> dict[str, int]:
    """Those that the file states, else those that llama.cpp takes for granted."""
    roles = dict(_default_roles(kind, types))
    for key, value in metadata.items():
        if not key.startswith(_PREFIX) or not key.endswith("_token_id"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(types):
            raise ValueError(f"{key} = {value!r}, but there are tokens 0 to {len(types) - 1}")
        name = key.removeprefix(_PREFIX).removesuffix("_token_id")
        roles[_ROLES.get(name, name)] = value
    return roles


def _default_roles(kind: object, types: Sequence[TokenType]) -> Iterable[tuple[str, int]]:
    if kind == "llama":
        return [(name, token) for name, token in (("unk", 0), ("bos", 1), ("eos", 2)) if token < len(types)]
    falcon = 11  # the first GGUFs of this kind were Falcon's, whose <|endoftext|> it is
    if kind == "gpt2" and len(types) > falcon and types[falcon] is TokenType.CONTROL:
        return [("bos", falcon), ("eos", falcon)]
    return []
