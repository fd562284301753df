"""Whether an engine turns texts into ids and ids into texts as its source does: texts, chats, raw continuations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.special_tokens import decide_tokens
from llmc.compiler.verify.source_text import ChatRefused, SourceText
from llmc.compiler.verify.texts import CHATS
from llmc.runtime.errors import RequestError
from llmc.runtime.loop.engine import Engine
from llmc.runtime.text.detokenize import StreamDetokenizer
from llmc.runtime.text.tokenizer import Tokenizer

_SHOWN = 60  # characters of a text


@dataclass(frozen=True)
class Disagreement:
    """`kind`: ids of a text, decoding, chat, continuation, special tokens. `of`: the text it is about."""

    kind: str
    of: str
    source: str
    engine: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.of}: the source has {self.source}, the engine {self.engine}"


@dataclass(frozen=True)
class TextPath:
    """What was compared, and each thing about which engine and source disagree."""

    num_compared: int
    disagreements: tuple[Disagreement, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[], Iterator[Disagreement]]


def compare_text(
    engine: Engine,
    source: ModelSource,
    theirs: SourceText | None,
    texts: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TextPath:
    """Engine and source over `texts` and the built-in chats; nothing is computed by the model."""
    ours = engine.tokenizer
    checks: list[Check] = [partial(_special_tokens, engine, source)]
    if ours is None or theirs is None:
        checks.append(partial(_presence, source.name, theirs is not None, ours is not None))
    else:
        for text in texts:
            checks += [partial(_text, ours, theirs, text), partial(_continuations, ours, theirs, text)]
        checks += [partial(_chat, engine, theirs, chat) for chat in CHATS]
    disagreements: list[Disagreement] = []
    for done, check in enumerate(checks, 1):
        disagreements += check()
        progress(done, len(checks))
    return TextPath(len(checks), tuple(disagreements))


def _presence(name: str, theirs: bool, ours: bool) -> Iterator[Disagreement]:
    has = {True: "one", False: "none"}
    if theirs != ours:
        yield Disagreement("tokenizer", name, has[theirs], has[ours])


def _special_tokens(engine: Engine, source: ModelSource) -> Iterator[Disagreement]:
    theirs, ours = asdict(decide_tokens(source).tokens), asdict(engine.manifest.tokens)
    for name in theirs:
        if theirs[name] != ours[name]:
            yield Disagreement("special tokens", name, str(theirs[name]), str(ours[name]))


def _text(ours: Tokenizer, theirs: SourceText, text: str) -> Iterator[Disagreement]:
    expected = theirs.encode(text)
    try:
        found: list[int] | str = ours.encode(text)
    except RequestError as error:
        # Rather than obey a control token that plain text spells, the engine refuses: that is no disagreement.
        found = expected if ours.special_ids.intersection(expected[1:]) else str(error)
    if found != expected:
        yield Disagreement("ids", _brief(text), *_from_where_they_differ(expected, found))
    if (decoded := ours.decode(expected)) != (text_again := theirs.decode(expected)):
        yield Disagreement("decoding", _brief(text), *_from_where_they_differ(text_again, decoded))


def _continuations(ours: Tokenizer, theirs: SourceText, text: str) -> Iterator[Disagreement]:
    """Of a text that is cut into prompt and answer at a few places: what the answer adds to the prompt's text."""
    ids = theirs.encode(text)
    for cut in sorted({1, len(ids) // 3, 2 * len(ids) // 3, len(ids) - 1} - {0, -1}):
        before, whole = theirs.decode(ids[:cut]), theirs.decode(ids)
        while not whole.startswith(before):  # a character that is cut is not in the prompt's text yet
            before = before[:-1]
        stream = StreamDetokenizer(ours, ids[:cut])
        found = "".join([*(stream.add(token) for token in ids[cut:]), stream.finish()])
        if found != (expected := whole[len(before) :]):
            where = f"{_brief(text)} after {cut} tokens"
            yield Disagreement("continuation", where, *_from_where_they_differ(expected, found))


def _chat(engine: Engine, theirs: SourceText, chat: Sequence[dict[str, Any]]) -> Iterator[Disagreement]:
    expected, found = _chat_ids(theirs, chat), _engine_chat_ids(engine, chat)
    both_refuse = isinstance(expected, str) and isinstance(found, str)
    if expected != found and not both_refuse:
        roles = ", ".join(message["role"] for message in chat)
        yield Disagreement("chat", f"[{roles}]", *_from_where_they_differ(expected, found))


def _chat_ids(theirs: SourceText, chat: Sequence[dict[str, Any]]) -> list[int] | str:
    """Or why there are none."""
    if not theirs.has_chat:
        return "no chat template"
    try:
        return theirs.encode_chat(chat)
    except ChatRefused as error:
        return f"a refusal ({error})"


def _engine_chat_ids(engine: Engine, chat: Sequence[dict[str, Any]]) -> list[int] | str:
    try:
        return engine.encode_chat(chat)
    except RequestError as error:
        return f"a refusal ({error})"


def _from_where_they_differ(expected: Sequence[int] | str, found: Sequence[int] | str) -> tuple[str, str]:
    """Both, the source's first, from the first place on that differs."""
    if type(expected) is not type(found):
        return _whole(expected), _whole(found)
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    at = min(len(expected), len(found)) if at is None else at
    return f"{_whole(expected[at:])} from {at} on", _whole(found[at:])


def _whole(value: Sequence[int] | str) -> str:
    if isinstance(value, str):
        return _brief(value)
    return f"{list(value[:8])}{'...' if len(value) > 8 else ''}"


def _brief(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
