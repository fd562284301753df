"""Reads one answer as it comes: reasoning first, then content with calls of tools in it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from llmc.runtime.loop.results import Mark
from llmc.serve.chat.alphabet import OTHER, Alphabet
from llmc.serve.chat.call_reader import CallReader
from llmc.serve.chat.calls import Calls, Schemas
from llmc.serve.chat.formats import CallFormat, ReasoningFormat
from llmc.serve.chat.source import END, SPACES, Doing, Source
from llmc.serve.protocol.delta import Delta, ToolCallDelta


@dataclass(frozen=True)
class Expected:
    """What to look for in an answer. `in_reasoning`: the prompt ends inside of it. `split`: it is not content."""

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    in_reasoning: bool = False
    split: bool = True
    tools: Schemas = field(default_factory=dict)


class AnswerReader:
    """`feed` what comes, with the marks among it, then `finish`. The deltas depend on the whole text, not on pieces."""

    def __init__(self, expected: Expected, alphabet: Alphabet) -> None:
        self._expected = expected
        self._alphabet = alphabet
        self._source = Source()
        self._marks: deque[Mark] = deque()
        self._num_fed = 0
        self._is_plain = False  # all that follows is content, but for special tokens
        self._deltas: list[Delta] = []
        self.calls = Calls(expected.tools, self._tell_call)
        self._run = self._answer()

    def feed(self, text: str, marks: Sequence[Mark] = ()) -> list[Delta]:
        if self._is_plain and not marks and not self._marks:
            self._num_fed += len(text)
            return [Delta(content=text)] if text else []
        self._marks.extend(marks)
        return self.read(self._with_symbols(text))

    def read(self, text: str) -> list[Delta]:
        """`feed` of text that has its special tokens in it, as symbols of the alphabet."""
        self._source.add(text)
        return self._told()

    def finish(self) -> list[Delta]:
        """What was held back, now that nothing follows."""
        self._source.close()
        return self._told()

    def _with_symbols(self, text: str) -> str:
        """The symbols of marks at their places. A mark that the text lags behind waits for it."""
        pieces, last, end = list[str](), 0, self._num_fed + len(text)
        while self._marks and self._marks[0].at <= end:
            mark = self._marks.popleft()
            at = max(mark.at - self._num_fed, last)
            pieces += [text[last:at], self._alphabet.symbol(mark.token_id)]
            last = at
        self._num_fed = end
        return "".join([*pieces, text[last:]])

    def _told(self) -> list[Delta]:
        next(self._run, None)
        told, self._deltas = _joined(self._deltas), []
        return told

    def _answer(self) -> Doing:
        if self._expected.reasoning is not None:
            yield from self._reason(self._expected.reasoning)
        yield from self._content()

    def _reason(self, format: ReasoningFormat) -> Doing:
        source, split, start = self._source, self._expected.split, self._source.at
        tell = self._tell_reasoning if split else self._tell
        stops = SPACES | self._alphabet.symbols | {format.close[0][0]}
        if not self._expected.in_reasoning:
            yield from source.spaces()
            if not (yield from source.match_marker(format.open)):
                source.at = start
                return
        yield from source.spaces()
        if not split:
            tell(source.since(start))
        while True:
            start = source.at
            space = yield from source.spaces()
            if (yield from source.match_marker(format.close)):
                break
            character = yield from source.take()
            tell(space + character if character or not split else "")
            if character == END:
                return
            tell((yield from source.run(stops)))
        yield from source.spaces()
        if not split:
            tell(source.since(start))

    def _content(self) -> Doing:
        """All that is neither, without the space before and after calls."""
        source = self._source
        format = self._expected.calls
        self._is_plain = format is None  # and whatever has been fed is read before this waits for more
        reader = CallReader(source, format, self.calls, self._alphabet.written) if format is not None else None
        stops = SPACES | self._alphabet.symbols | format.beginnings if format is not None else frozenset[str]()
        at_start = True
        while True:
            space = (yield from source.spaces()) if reader is not None else ""
            if reader is not None and (yield from reader.read(at_start)):
                at_start = False
                continue
            character = yield from source.take()
            self._tell(space + character)
            if character == END:
                return
            at_start = character == OTHER  # after <|python_tag|>, which no template opens its calls with
            if not at_start:
                self._tell((yield from source.run(stops)))

    def _tell(self, text: str) -> None:
        if text := self._alphabet.written(text):
            self._deltas.append(Delta(content=text))

    def _tell_reasoning(self, text: str) -> None:
        if text := self._alphabet.written(text):
            self._deltas.append(Delta(reasoning=text))

    def _tell_call(self, delta: ToolCallDelta) -> None:
        self._deltas.append(Delta(tool_call=delta))


def _joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbours of one kind as one; a call's first delta, with its id and name, stays alone."""
    joined: list[Delta] = []
    for _, group in groupby(deltas, key=_kind):
        several = list(group)
        call = several[0].tool_call
        if call is not None:
            arguments = "".join(delta.tool_call.arguments for delta in several if delta.tool_call is not None)
            call = replace(call, arguments=arguments)
        content, reasoning = "".join(d.content for d in several), "".join(d.reasoning for d in several)
        joined.append(Delta(content, reasoning, call))
    return joined


def _kind(delta: Delta) -> tuple[bool, int | None, bool]:
    call = delta.tool_call
    return delta.reasoning != "", None if call is None else call.index, call is not None and call.id is not None
