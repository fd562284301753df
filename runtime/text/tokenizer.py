"""Text to ids and back, with a wall between text and control tokens.

A control token is a token that tokenizer.json marks special (`<|im_end|>`, `<s>`). Text that a user wrote
never becomes one: special tokens are encoded as plain text, always. The chat template's own control tokens
come in under aliases, strings that no user can guess because they hold a random number, each of which is an
added token beside the one that it stands for. So the whole conversation is still encoded in one piece, as
transformers does it.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from llmc.runtime.artifact.artifact import TOKENIZER, TOKENIZER_CONFIG, EngineFiles
from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.errors import EngineError, InvalidParameter, ManifestInvalid

# Noncharacters of Unicode: never text that is interchanged.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_LONG_TEXT = 4096  # characters


class Tokenizer:
    """tokenizer.json with the manifest's facts about special tokens. Safe to use from several threads."""

    def __init__(self, inner: tokenizers.Tokenizer, tokens: SpecialTokens, config: Mapping[str, Any]) -> None:
        self._inner = inner
        self._tokens = tokens
        self.config = config
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True
        self._aliases: dict[str, str] = {}  # spelling -> alias
        self._originals: dict[str, int] = {}  # alias -> the token it stands for
        self._alias_ids: frozenset[int] = frozenset()
        self._special = {
            token_id: token for token_id, token in inner.get_added_tokens_decoder().items() if token.special
        }
        self.special_ids = frozenset(self._special)
        self._unknown = self.template_variables.get("unk_token")
        self._silent: dict[int, bool] = {}  # of the tokens that were asked for
        self.byte_ids = _byte_fallback_ids(inner)
        self._marked = self._with_aliases()
        longest_first = sorted((re.escape(text) for text in self._aliases if text), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(longest_first)) if longest_first else None

    @classmethod
    def load(cls, files: EngineFiles) -> "Tokenizer":
        """The engine's tokenizer. Raises ManifestInvalid if its files cannot be read as such."""
        path = files.path(TOKENIZER)
        config: Any = {}
        try:
            inner = tokenizers.Tokenizer.from_buffer(files.read_bytes(TOKENIZER))
        except EngineError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise ManifestInvalid(f"{path}: not a tokenizer: {error}") from error
        if files.has(TOKENIZER_CONFIG):
            config = _read_config(files.path(TOKENIZER_CONFIG), files.read_bytes(TOKENIZER_CONFIG))
        return cls(inner, files.manifest.tokens, config)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, after BOS if the model wants one.

        Raises InvalidParameter for lone surrogates.
        """
        ids = self._encode(self._inner, text)
        if self._tokens.add_bos and self._tokens.bos is not None:
            ids.insert(0, self._tokens.bos)
        return ids

    def encode_marked(self, text: str) -> list[int]:
        """Ids of text in which control tokens are written as `mark_control` writes them; nothing is added."""
        return self._encode(self._marked, text)

    def mark_control(self, text: str) -> str:
        """Every special token that `text` spells becomes its alias, for `encode_marked`."""
        if self._special_pattern is None:
            return text
        return self._special_pattern.sub(lambda match: self._aliases[match.group()], text)

    @property
    def special_contents(self) -> Sequence[str]:
        """The special tokens as they are spelled in text."""
        return tuple(self._aliases)

    @property
    def special_spellings(self) -> Mapping[int, str]:
        """The same by their ids."""
        return {token_id: token.content for token_id, token in self._special.items()}

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; ids that no token has are left out too."""
        aliases = self._alias_ids
        if not aliases.isdisjoint(ids):
            ids = [token for token in ids if token not in aliases]
        text: str = self._inner.decode(ids, skip_special_tokens=True)
        return text

    def token_text(self, token: int) -> str:
        """How the vocabulary spells one token, special ones included; empty if no token has the id."""
        return "" if token in self._alias_ids else self._inner.id_to_token(token) or ""

    def is_silent(self, token: int) -> bool:
        """Whether `decode` leaves this id out: a special token, or no token at all."""
        silent = self._silent.get(token)
        if silent is None:
            known = self._inner.id_to_token(token) is not None
            silent = self._silent[token] = token in self.special_ids or token in self._alias_ids or not known
        return silent

    @cached_property
    def template_variables(self) -> dict[str, str]:
        """`bos_token` and its kind, as chat templates use them: what tokenizer_config.json names, as in transformers.

        A tokenizer without that file has the tokens of the manifest's ids.
        """
        if not self.config:
            eos = self._tokens.eos[0] if self._tokens.eos else None
            ids = {"bos_token": self._tokens.bos, "eos_token": eos, "pad_token": self._tokens.pad}
            return {name: self.token_text(token) for name, token in ids.items() if token is not None}
        found: dict[str, str] = {}
        for name, value in self.config.items():
            content = value.get("content") if isinstance(value, Mapping) else value
            if name.endswith("_token") and isinstance(content, str):
                found[name] = content
        return found

    def _encode(self, inner: tokenizers.Tokenizer, text: str) -> list[int]:
        if not isinstance(text, str):
            raise InvalidParameter(f"a text is a str, got {type(text).__name__}")
        try:
            if len(text) < _LONG_TEXT:
                encoding = inner.encode(text, add_special_tokens=False)
            else:  # the library lets other threads run only while it encodes several
                (encoding,) = inner.encode_batch([text], add_special_tokens=False)
        except (TypeError, UnicodeError) as error:
            raise InvalidParameter("the text holds lone surrogates, which are no Unicode characters") from error
        ids: list[int] = []
        for token, spelling in zip(encoding.ids, encoding.tokens, strict=True):
            # The library may count the spaces around an added token in.
            original = self._originals.get(spelling.strip())
            if original is None and token in self.special_ids:
                self._check_unknown(token, text)
            ids.append(token if original is None else original)
        return ids

    def _check_unknown(self, token: int, text: str) -> None:
        """Plain text gave a special token: fine if it stands for unknown text.

        A model whose vocabulary proper holds a control token's spelling gives that token too (Unigram can).
        """
        spelling = self._special[token].content
        if spelling in text and spelling != self._unknown:
            raise InvalidParameter(f"the tokenizer cannot write {spelling!r} as plain text; leave it out")

    def _with_aliases(self) -> tokenizers.Tokenizer:
        """The tokenizer to which every special token's alias is added: the same one, or a copy."""
        nonce = secrets.token_hex(16)
        added: list[tokenizers.AddedToken] = []
        for token_id, token in self._special.items():
            alias = f"{_OPEN}{nonce}{token_id:x}{_CLOSE}"
            self._aliases[token.content] = alias
            self._originals[alias] = token_id
            added.append(
                tokenizers.AddedToken(
                    alias,
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=False,
                )
            )
        inner = self._inner
        first = max(
            inner.get_vocab_size(with_added_tokens=False), *(i + 1 for i in inner.get_added_tokens_decoder()), 0
        )
        if any(inner.id_to_token(token) is not None for token in range(first, first + len(added))):
            # Ids with gaps: the library gives new tokens ids that others have. A copy keeps `decode` right.
            inner = tokenizers.Tokenizer.from_str(inner.to_str())
            inner.encode_special_tokens = True
        else:
            self._alias_ids = frozenset(range(first, first + len(added)))
        inner.add_tokens(added)
        return inner


def _byte_fallback_ids(inner: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of `<0x00>`..`<0xFF>`, if the decoder joins runs of them to characters."""
    if inner.decoder is None or b'"ByteFallback"' not in bytes(inner.decoder.__getstate__()):
        return frozenset()
    ids = (inner.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token for token in ids if token is not None)


def _read_config(path: Path, text: bytes) -> Mapping[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ManifestInvalid(f"{path}: expected an object, got {type(config).__name__}")
    return config
