"""What an answer's text means: content, reasoning and calls of tools, as they come.

The seam between the routes, which know no model's style, and the parsers, which know no HTTP: a parser is made for
each sample of a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmc.runtime.loop.results import Mark

Tool = Mapping[str, Any]  # {"type": "function", "function": {...}}, as the request has it


@dataclass(frozen=True)
class ToolCallDelta:
    """A part of one call. The first of each `index` has id and name; the arguments join to a JSON object's text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Delta:
    """What a piece of text adds to a message."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class ChatParser(Protocol):
    """Reads one answer. Whatever it cannot read as something else is content: no text is lost."""

    def feed(self, text: str, marks: Sequence[Mark] = ()) -> list[Delta]:
        """The next piece of the text, and the special tokens that came with it: places in the whole text."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back, now that nothing follows."""
        ...


class PlainParser:
    """All of it is content."""

    def feed(self, text: str, marks: Sequence[Mark] = ()) -> list[Delta]:
        return [Delta(content=text)] if text else []

    def finish(self) -> list[Delta]:
        return []
