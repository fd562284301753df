"""A call that is one object of JSON, which holds its name and its arguments; or several in an array."""

import json
from collections.abc import Mapping

from llmc.serve.chat.calls import Calls, is_name
from llmc.serve.chat.formats import JsonBody, Path
from llmc.serve.chat.json_reader import Broken, nothing, read_members, read_string, read_value
from llmc.serve.chat.source import Deciding, Doing, Reading, Source


class JsonBodyReader:
    """`strict`: nothing but the JSON says that it is a call. So it must be whole, and of a tool that there is."""

    def __init__(self, source: Source, body: JsonBody, calls: Calls, strict: bool) -> None:
        self._source = source
        self._body = body
        self._calls = calls
        self._strict = strict
        self._parents = {path[:size] for path in (body.name, *body.arguments) for size in range(1, len(path))}
        self._name: str | None = None
        self._arguments: str | None = None  # those that came before the name

    def read(self) -> Doing:
        if (yield from self._source.match("[")):
            yield from self._array()
        else:
            yield from self._call()

    def _array(self) -> Doing:
        source = self._source
        yield from source.spaces()
        yield from self._call()
        ended = source.at
        try:
            while (yield from self._follows_another()):
                yield from self._call()
                ended = source.at
        except Broken:
            if self._calls.is_open:
                raise
            source.at = ended  # the calls before it stay; what is left is text
        else:
            yield from source.skip_marker(("]",))

    def _follows_another(self) -> Deciding:
        yield from self._source.spaces()
        found = yield from self._source.match(",")
        yield from self._source.spaces()
        return found

    def _call(self) -> Doing:
        self._name = self._arguments = None
        yield from self._members(())
        if not self._calls.is_open:
            if self._name is None or self._strict:
                raise Broken
            self._begin(self._name, "{}")  # some leave out the arguments of a tool that takes none
        self._calls.end()

    def _members(self, path: Path) -> Doing:
        return read_members(self._source, lambda key: self._member((*path, key)))

    def _member(self, here: Path) -> Doing:
        first = yield from self._source.peek()
        if here == self._body.name and self._name is None:
            yield from self._read_name()
        elif here in self._body.arguments and self._arguments is None and not self._calls.is_open:
            yield from self._read_arguments(first)
        elif here in self._parents and first == "{":
            yield from self._members(here)
        else:
            yield from read_value(self._source, nothing)

    def _read_name(self) -> Doing:
        name = yield from read_string(self._source)
        if name not in self._calls.tools and (self._strict or not is_name(name)):
            raise Broken
        self._name = name
        if self._arguments is not None:
            self._begin(name, self._arguments)

    def _read_arguments(self, first: str) -> Doing:
        if first == "{" and self._name is not None:
            self._calls.begin(self._name)
            yield from read_value(self._source, self._calls.add)
            return
        self._arguments = yield from self._whole_arguments(first)
        if self._name is not None:
            self._begin(self._name, self._arguments)

    def _whole_arguments(self, first: str) -> Reading:
        """Arguments that come before the name, as a string that holds JSON, or as null."""
        if first == '"':
            return _object_text((yield from read_string(self._source)))
        written: list[str] = []
        yield from read_value(self._source, written.append)
        return "{}" if written == ["null"] else _object_text("".join(written))

    def _begin(self, name: str, arguments: str) -> None:
        self._calls.begin(name)
        self._calls.add(arguments)


def _object_text(text: str) -> str:
    """JSON that must be an object; without lone surrogates, which a string that holds JSON may spell."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken from error
    if not isinstance(value, Mapping):
        raise Broken
    return text if text.isascii() else json.dumps(value, ensure_ascii=True)
