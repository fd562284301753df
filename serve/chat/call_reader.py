"""Calls of tools in an answer, whatever their format: where they begin and end, and what if they do not.

Nothing is told of a call before its name is known and its arguments begin; what breaks before that was no call. What
breaks later stays a call: its arguments are what the model wrote, up to where the call closes.
"""

from collections.abc import Callable

from llmc.serve.chat.calls import Calls
from llmc.serve.chat.formats import CallFormat, JsonBody, NamedBody
from llmc.serve.chat.json_body import JsonBodyReader
from llmc.serve.chat.json_reader import Broken
from llmc.serve.chat.source import END, Deciding, Doing, Source
from llmc.serve.chat.text_bodies import NamedBodyReader, TaggedBodyReader

_BARE_SEPARATORS = ((";",), (",",))  # between calls that are nothing but JSON


class CallReader:
    """`written` gives text of the source as people read it."""

    def __init__(self, source: Source, format: CallFormat, calls: Calls, written: Callable[[str], str]) -> None:
        self._source = source
        self._format = format
        self._calls = calls
        self._written = written
        self._separators = (format.separator,) if format.separator else () if format.open else _BARE_SEPARATORS
        self._body = _body_reader(source, format, calls)

    def read(self, at_start: bool) -> Deciding:
        """Whether there were calls here, which are read then, with the space after them. `at_start`: of the answer."""
        start, source, format = self._source.at, self._source, self._format
        opened = at_start if format.is_bare else False
        if format.section_open and (yield from source.match_marker(format.section_open)):
            opened = True
            yield from source.spaces()
        if not (opened or format.open) or not (yield from self._call()):
            source.at = start
            return False
        while (yield from self._another()):
            pass
        yield from source.skip_marker(format.section_close)
        yield from source.spaces()
        return True

    def _another(self) -> Deciding:
        start, source = self._source.at, self._source
        yield from source.spaces()
        for separator in self._separators:
            if (yield from source.match_marker(separator)):
                yield from source.spaces()
                break
        if (yield from self._call()):
            return True
        source.at = start
        return False

    def _call(self) -> Deciding:
        start, count = self._source.at, self._calls.count
        if not (yield from self._source.match_marker(self._format.open)):
            return False
        yield from self._source.spaces()
        try:
            yield from self._body.read()
        except Broken:
            if self._calls.count == count:
                self._source.at = start
                return False
            if self._calls.is_open:
                yield from self._rest()
        yield from self._source.skip_marker(self._format.close)
        return True

    def _rest(self) -> Doing:
        """Of a call that broke: all up to its end is its arguments."""
        close = (*self._format.close, *self._format.section_close)[:1]
        while not (close and (yield from self._source.follows(close[0]))):
            character = yield from self._source.take()
            if character == END:
                break
            self._calls.add(self._written(character))
        self._calls.end()


def _body_reader(
    source: Source, format: CallFormat, calls: Calls
) -> JsonBodyReader | NamedBodyReader | TaggedBodyReader:
    if isinstance(format.body, JsonBody):
        return JsonBodyReader(source, format.body, calls, strict=format.is_bare)
    if isinstance(format.body, NamedBody):
        return NamedBodyReader(source, format.body, calls)
    return TaggedBodyReader(source, format.body, format.close, calls)
