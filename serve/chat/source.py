"""An answer's characters, for readers that wait for the next one and may go back.

Readers are generators that yield where the text is not there yet. What they make of a text depends on its characters
alone, not on how they came in pieces; and what may still turn out to be a marker is not let out, since it is not read.
"""

from collections.abc import Generator, Set

from llmc.serve.chat.formats import Marker

Reading = Generator[None, None, str]
Deciding = Generator[None, None, bool]
Doing = Generator[None, None, None]

END = ""  # in place of a character, after the last one
SPACES = frozenset(" \t\r\n")  # JSON's


class Source:
    """Characters as they come; `at` is the next to be read and may be set back to where it was."""

    def __init__(self) -> None:
        self._characters: list[str] = []
        self._closed = False
        self.at = 0

    def add(self, text: str) -> None:
        self._characters.extend(text)

    def close(self) -> None:
        self._closed = True

    def since(self, start: int) -> str:
        """What has been read from `start` on."""
        return "".join(self._characters[start : self.at])

    def peek(self) -> Reading:
        while self.at == len(self._characters):
            if self._closed:
                return END
            yield
        return self._characters[self.at]

    def take(self) -> Reading:
        character = yield from self.peek()
        self.at += len(character)
        return character

    def run(self, stops: Set[str]) -> Reading:
        """What is there up to one of `stops`, all at once: text is mostly text."""
        yield from self.peek()
        start = at = self.at
        characters, end = self._characters, len(self._characters)
        while at < end and characters[at] not in stops:
            at += 1
        self.at = at
        return self.since(start)

    def spaces(self) -> Reading:
        start = self.at
        while (yield from self.peek()) in SPACES:
            self.at += 1
        return self.since(start)

    def match(self, text: str) -> Deciding:
        """Whether `text` follows; if it does, it is read."""
        start = self.at
        for expected in text:
            if (yield from self.take()) != expected:
                self.at = start
                return False
        return True

    def follows(self, text: str) -> Deciding:
        """Whether `text` comes next; it is not read."""
        start = self.at
        found = yield from self.match(text)
        self.at = start
        return found

    def match_marker(self, marker: Marker) -> Deciding:
        """The same of a marker's chunks, and of the spaces before the second and all after it."""
        start = self.at
        for index, chunk in enumerate(marker):
            if index:
                yield from self.spaces()
            if not (yield from self.match(chunk)):
                self.at = start
                return False
        return True

    def runs_out_in(self, text: str) -> Deciding:
        """Whether the answer ends in the middle of `text`, which is read then: it was cut off there."""
        start = self.at
        for expected in text:
            character = yield from self.take()
            if character == END:
                return self.at > start
            if character != expected:
                break
        self.at = start
        return False

    def skip_marker(self, marker: Marker) -> Doing:
        """Read as much of a closing marker as is there; models leave some of it out."""
        for chunk in marker:
            start = self.at
            yield from self.spaces()
            if not ((yield from self.match(chunk)) or (yield from self.runs_out_in(chunk))):
                self.at = start
                return
