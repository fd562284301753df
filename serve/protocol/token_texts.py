"""One token as text and as bytes, for log-probabilities: those of an answer's tokens join to the answer."""

from collections.abc import Sequence, Set
from functools import cache
from typing import Protocol

_REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """Of llmc.runtime.text.tokenizer.Tokenizer, what this needs."""

    special_ids: frozenset[int]
    byte_ids: frozenset[int]

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token: int) -> str: ...


class TokenTexts:
    """Of one model. Remembers every token that was asked for."""

    def __init__(self, tokenizer: Decoder | None) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def text(self, token: int) -> str:
        """U+FFFD in the place of what is no whole character; control tokens as they are spelled."""
        return self._of(token)[0]

    def raw(self, token: int) -> bytes:
        return self._of(token)[1]

    def shown(self, token: int) -> bytes:
        """What it adds to an answer: control tokens nothing."""
        return b"" if self.tokenizer is None or token in self.tokenizer.special_ids else self.raw(token)

    def _of(self, token: int) -> tuple[str, bytes]:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = _text_and_bytes(self.tokenizer, token)
        return known


def _text_and_bytes(tokenizer: Decoder | None, token: int) -> tuple[str, bytes]:
    if tokenizer is None:
        return "", b""
    spelling = tokenizer.token_text(token)
    if token in tokenizer.special_ids:
        return spelling, spelling.encode()
    # Decoders drop the first word's leading space, so the text is what a second one adds.
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    text = twice[len(once) :] if twice.startswith(once) else once
    if _REPLACEMENT not in text:
        return text, text.encode()
    return text, _raw_bytes(spelling, token in tokenizer.byte_ids) or text.encode()


def _raw_bytes(spelling: str, is_byte: bool) -> bytes | None:
    """Of a token that is no whole character: `<0xE2>`, or the letters by which byte-level vocabularies write bytes."""
    if is_byte:
        return bytes([int(spelling[3:5], 16)])
    letters = _byte_letters()
    return bytes(letters[c] for c in spelling) if set(spelling) <= set(letters) else None


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's letters: printable Latin-1 stands for itself, the other bytes for letters from U+0100 on."""
    printable: Set[int] = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
