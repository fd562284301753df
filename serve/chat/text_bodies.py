"""Calls whose name is plain text: then arguments in JSON, or keys and values between tags."""

import json
from collections.abc import Sequence

from llmc.serve.chat.alphabet import is_symbol
from llmc.serve.chat.calls import Calls, is_name, value_of
from llmc.serve.chat.formats import Marker, NamedBody, Slot, TaggedBody
from llmc.serve.chat.json_reader import Broken, Sink, read_value
from llmc.serve.chat.source import END, Doing, Reading, Source

_MOST_CHARACTERS = 256  # of a name, a key, an id


class NamedBodyReader:
    """`name between {"arguments": ...}`"""

    def __init__(self, source: Source, body: NamedBody, calls: Calls) -> None:
        self._source = source
        self._body = body
        self._calls = calls

    def read(self) -> Doing:
        name = yield from read_name(self._source, self._body.between)
        for index, part in enumerate(self._body.between):
            yield from self._source.spaces()
            if isinstance(part, Slot):
                yield from read_until(self._source, self._body.between[index + 1 :])
            elif not (yield from self._source.match(part)):
                raise Broken
        yield from self._source.spaces()
        if (yield from self._source.peek()) != "{":
            raise Broken
        self._calls.begin(name)
        yield from read_value(self._source, self._calls.add)
        self._calls.end()


class TaggedBodyReader:
    """`name, key_open key key_close value value_close, ..., close`; what opens the call has been read."""

    def __init__(self, source: Source, body: TaggedBody, close: Marker, calls: Calls) -> None:
        self._source = source
        self._body = body
        self._close = close
        self._calls = calls

    def read(self) -> Doing:
        body, calls = self._body, self._calls
        name = yield from read_name(self._source, body.name_close or body.key_open)
        yield from self._source.skip_marker(body.name_close)
        before = "{"
        while True:
            yield from self._source.spaces()
            if (yield from self._source.match_marker(body.key_open)):
                yield from self._argument(name, before)
                before = ", "
            elif (yield from self._source.follows(self._close[0])):
                break
            else:
                yield from self._source.runs_out_in(self._close[0])
                raise Broken
        if before == "{":
            calls.begin(name)
            calls.add("{")
        calls.add("}")
        calls.end()

    def _argument(self, name: str, before: str) -> Doing:
        yield from self._source.spaces()
        key = yield from read_until(self._source, self._body.key_close)
        if not (yield from self._source.match_marker(self._body.key_close)):
            raise Broken
        if before == "{":
            self._calls.begin(name)
        self._calls.add(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        yield from self._source.match(self._body.value_lead)
        declared = self._calls.type_of(name, key)
        if declared == "string":
            self._calls.add('"')
            yield from self._value(lambda character: self._calls.add(json.dumps(character, ensure_ascii=False)[1:-1]))
            self._calls.add('"')
            return
        written: list[str] = []
        yield from self._value(written.append)
        self._calls.add(value_of("".join(written), declared))

    def _value(self, sink: Sink) -> Doing:
        """Text up to the closing tag, and past it."""
        close, source = self._body.value_close, self._source
        while not (yield from source.follows(self._body.value_trail + close[0])):
            if (yield from source.follows(close[0])):
                break
            if (yield from source.runs_out_in(self._body.value_trail + close[0])):
                raise Broken
            sink((yield from _plain(source)))
        yield from source.spaces()
        yield from source.skip_marker(close)


def read_name(source: Source, following: Sequence[str | Slot]) -> Reading:
    """A name that ends where what follows it begins, or where it cannot go on."""
    start = source.at
    stop = following[0] if following else None
    while is_name((yield from source.peek())):
        if isinstance(stop, str) and (yield from source.follows(stop)):
            break
        source.at += 1
    name = source.since(start)
    if not is_name(name):
        raise Broken
    return name


def read_until(source: Source, following: Sequence[str | Slot]) -> Reading:
    """Some text up to what follows it, which is not read; without the space around it."""
    stop, start = following[0], source.at
    while not (isinstance(stop, str) and (yield from source.follows(stop))):
        yield from _plain(source)
        if source.at - start > _MOST_CHARACTERS:
            raise Broken
    text = source.since(start).strip()
    if not text:
        raise Broken
    return text


def _plain(source: Source) -> Reading:
    character = yield from source.peek()
    if character == END or is_symbol(character):
        raise Broken
    source.at += 1
    return character
