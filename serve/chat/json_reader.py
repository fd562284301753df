"""JSON out of an answer, checked character by character, and passed on as it is written.

One liberty: control characters inside strings, which models write and JSON forbids, are passed on escaped.
"""

import json
import re
from collections.abc import Callable, Generator

from llmc.serve.chat.alphabet import is_symbol
from llmc.serve.chat.source import END, Doing, Reading, Source

Sink = Callable[[str], object]  # takes what was read

MAX_DEPTH = 64
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NUMBER_PARTS = frozenset("+-.eE0123456789")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")


class Broken(Exception):
    """The text does not go on as it began, or it ends before that is known."""


def nothing(text: str) -> None:
    """A sink."""


def expect(source: Source, text: str) -> Doing:
    if not (yield from source.match(text)):
        raise Broken


def read_value(source: Source, sink: Sink, depth: int = 0) -> Doing:
    """One value, without the space around it. Raises Broken after passing on what was right."""
    first = yield from source.peek()
    if first == "{":
        yield from _items(source, sink, "{}", depth)
    elif first == "[":
        yield from _items(source, sink, "[]", depth)
    elif first == '"':
        yield from _string(source, sink)
    elif first in _WORDS:
        yield from expect(source, _WORDS[first])
        sink(_WORDS[first])
    else:
        yield from _number(source, sink)


def read_string(source: Source) -> Reading:
    """A string's text."""
    written: list[str] = []
    yield from _string(source, written.append)
    return str(json.loads("".join(written)))


def read_members(source: Source, member: Callable[[str], Doing]) -> Doing:
    """An object whose values `member` reads, each called with its key."""
    yield from expect(source, "{")
    yield from source.spaces()
    if (yield from source.match("}")):
        return
    while True:
        key = yield from read_string(source)
        yield from source.spaces()
        yield from expect(source, ":")
        yield from source.spaces()
        yield from member(key)
        yield from source.spaces()
        if (yield from source.match("}")):
            return
        yield from expect(source, ",")
        yield from source.spaces()


def _items(source: Source, sink: Sink, brackets: str, depth: int) -> Doing:
    if depth == MAX_DEPTH:
        raise Broken
    yield from _pass_on(source, sink, brackets[0])
    sink((yield from source.spaces()))
    if (yield from source.peek()) != brackets[1]:
        yield from _item(source, sink, brackets, depth)
        while (yield from source.peek()) == ",":
            yield from _pass_on(source, sink, ",")
            sink((yield from source.spaces()))
            yield from _item(source, sink, brackets, depth)
    yield from _pass_on(source, sink, brackets[1])


def _item(source: Source, sink: Sink, brackets: str, depth: int) -> Doing:
    if brackets == "{}":
        yield from _string(source, sink)
        sink((yield from source.spaces()))
        yield from _pass_on(source, sink, ":")
        sink((yield from source.spaces()))
    yield from read_value(source, sink, depth + 1)
    sink((yield from source.spaces()))


def _pass_on(source: Source, sink: Sink, text: str) -> Doing:
    yield from expect(source, text)
    sink(text)


def _string(source: Source, sink: Sink) -> Doing:
    yield from _pass_on(source, sink, '"')
    while True:
        character = yield from source.peek()
        if character == END or is_symbol(character):
            raise Broken
        if character == "\\":
            sink((yield from _escape(source)))
            continue
        source.at += 1
        sink(character if character >= " " else json.dumps(character)[1:-1])
        if character == '"':
            return


def _escape(source: Source) -> Reading:
    start = source.at
    source.at += 1
    kind = yield from source.take()
    digits = 4 if kind == "u" else 0
    if kind == END or kind not in '"\\/bfnrtu':
        source.at = start
        raise Broken
    for _ in range(digits):
        if (yield from source.take()) not in _HEX:
            source.at = start
            raise Broken
    return source.since(start)


def _number(source: Source, sink: Sink) -> Generator[None, None, None]:
    start = source.at
    while (yield from source.peek()) in _NUMBER_PARTS:
        source.at += 1
    text = source.since(start)
    if not _NUMBER.fullmatch(text):
        source.at = start
        raise Broken
    sink(text)
