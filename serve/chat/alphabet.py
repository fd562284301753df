"""Text in which special tokens are characters of their own, so that what spells one is not one.

`[TOOL_CALLS]` that a model chose as a token opens a call; the same letters, quoted from a user, do not. Decoded text
holds no lone surrogates, so these stand for the special tokens here, and never leave the parsers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmc.runtime.text.tokenizer import Tokenizer

_FIRST, _LAST = 0xD800, 0xDFFE
OTHER = "\udfff"  # any special token that means nothing here
SYMBOLS = "\ud800-\udfff"


@dataclass(frozen=True)
class Special:
    """A special token, how it is spelled, and the character that stands for it."""

    token_id: int
    text: str
    symbol: str


class Alphabet:
    """The special tokens that mean something. All others are the one symbol OTHER."""

    def __init__(self, specials: Sequence[Special]) -> None:
        self._specials = tuple(specials)
        self._symbols = {special.token_id: special.symbol for special in specials}
        self._by_text = {special.text: special.symbol for special in specials}
        self._written = {ord(special.symbol): special.text for special in specials} | {ord(OTHER): ""}
        longest_first = sorted(map(re.escape, self._by_text), key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first)) if longest_first else None

    @classmethod
    def of_template(cls, source: str, tokenizer: Tokenizer) -> "Alphabet":
        """Those that a template spells."""
        spelled = [(token, text) for token, text in tokenizer.special_spellings.items() if text and text in source]
        codes = range(_FIRST, _LAST + 1)
        return cls([Special(token, text, chr(code)) for (token, text), code in zip(spelled, codes, strict=False)])

    def only(self, symbols: str) -> "Alphabet":
        """The part of it that these symbols are."""
        return Alphabet([special for special in self._specials if special.symbol in symbols])

    @property
    def symbols(self) -> frozenset[str]:
        """All characters that stand for special tokens."""
        return frozenset((*self._symbols.values(), OTHER))

    def symbol(self, token: int) -> str:
        """The character of a special token."""
        return self._symbols.get(token, OTHER)

    def read(self, rendered: str) -> str:
        """A template's own output, in which what spells a special token is one."""
        return self._pattern.sub(lambda found: self._by_text[found.group()], rendered) if self._pattern else rendered

    def written(self, text: str) -> str:
        """As people read it: special tokens spelled, those that mean nothing left out."""
        return text.translate(self._written)

    def of_ids(self, ids: Sequence[int], tokenizer: Tokenizer) -> str:
        """The text of tokens, special ones as their symbols."""
        text, plain = "", list[int]()
        for token in ids:
            if token in tokenizer.special_ids:
                text += tokenizer.decode(plain) + self.symbol(token)
                plain = []
            else:
                plain.append(token)
        return text + tokenizer.decode(plain)


def is_symbol(text: str) -> bool:
    return len(text) == 1 and _FIRST <= ord(text) <= _LAST + 1
