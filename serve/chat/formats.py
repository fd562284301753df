"""How a model writes calls of tools and reasoning: markers around names, keys and values, whichever they are.

A marker is a sequence of chunks without spaces; between two of them any space may come. Special tokens are symbols of
serve/chat/alphabet.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from llmc.serve.chat.alphabet import SYMBOLS

Marker = tuple[str, ...]
Path = tuple[str, ...]  # keys from the outside in

_CHUNK = re.compile(rf"<[^<>\s{SYMBOLS}]*>|\[[^\[\]\s{SYMBOLS}]*\]|[{SYMBOLS}]|[<\[]?[^\s<\[{SYMBOLS}]+|[<\[]")


class Slot(Enum):
    """What is not the same in every call."""

    ID = "id"


@dataclass(frozen=True)
class JsonBody:
    """The call is an object of JSON that holds its name and its arguments; an array of them is several calls."""

    name: Path
    arguments: tuple[Path, ...]

    @property
    def example(self) -> str:
        return f'{{"{".".join(self.name)}": ..., "{".".join(self.arguments[0])}": {{...}}}}'


@dataclass(frozen=True)
class NamedBody:
    """The name, then `between`, then the arguments as an object of JSON."""

    between: tuple[str | Slot, ...]

    @property
    def example(self) -> str:
        parts = [part.value if isinstance(part, Slot) else part for part in self.between]
        return " ".join(["name", *parts, "{...}"])


@dataclass(frozen=True)
class TaggedBody:
    """The name, then every argument as a key and a value between tags; values are not JSON, but plain text.

    The space that the template writes around values (`value_lead`, `value_trail`) is not theirs.
    """

    name_close: Marker
    key_open: Marker
    key_close: Marker
    value_close: Marker
    value_lead: str
    value_trail: str

    @property
    def example(self) -> str:
        return " ".join(
            ["name", *self.name_close, *self.key_open, "key", *self.key_close, "value", *self.value_close, "..."]
        )


Body = JsonBody | NamedBody | TaggedBody


@dataclass(frozen=True)
class CallFormat:
    """Calls one after the other, each between `open` and `close`, all of them between those of the section.

    Without any opening marker a call is an answer that is JSON from its first character on.
    """

    body: Body
    section_open: Marker = ()
    open: Marker = ()
    close: Marker = ()
    section_close: Marker = ()
    separator: Marker = ()

    @property
    def is_bare(self) -> bool:
        return not self.section_open and not self.open

    @property
    def beginnings(self) -> frozenset[str]:
        """The characters that an opening marker begins with."""
        return frozenset(marker[0][0] for marker in (self.section_open, self.open) if marker)

    @property
    def example(self) -> str:
        """What calls look like, for people; every marker is in it."""
        call = " ".join([*self.open, self.body.example, *self.close])
        return " ".join([*self.section_open, call, *self.separator, *self.section_close])


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning comes before everything else, between two markers."""

    open: Marker
    close: Marker

    @property
    def example(self) -> str:
        return " ".join([*self.open, "...", *self.close])


def chunks(literal: str) -> Marker:
    """What a template writes between two things of which it is told: tags, symbols and words, spaces left out."""
    return tuple(_CHUNK.findall(literal))


def num_common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many chunks, or characters, two begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def common_prefix(a: Marker, b: Marker) -> Marker:
    return a[: num_common(a, b)]


def common_suffix(a: Marker, b: Marker) -> Marker:
    return a[len(a) - num_common(a[::-1], b[::-1]) :]
