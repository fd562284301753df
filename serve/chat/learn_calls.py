"""How a model calls tools, learned from its own template: what that writes around calls whose words are known."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmc.runtime.text.chat import ChatTemplate
from llmc.serve.chat.alphabet import Alphabet, is_symbol
from llmc.serve.chat.answer_reader import AnswerReader, Expected
from llmc.serve.chat.call_spans import Span, find_call
from llmc.serve.chat.formats import (
    CallFormat,
    JsonBody,
    Marker,
    ReasoningFormat,
    TaggedBody,
    chunks,
    common_prefix,
    common_suffix,
    num_common,
)
from llmc.serve.chat.probe import ARGUMENTS, CONTENT, IDS, NAMES, SCHEMAS, Probe

_EXAMPLE = re.compile(
    r'(\S{1,64})\s*\{\s*"name"\s*:[^{}]*,\s*"(?:arguments|parameters)"\s*:(?:\s*\{[^{}]*\}\s*|[^{}]*)\}\s*(\S{1,64})'
)
_BESIDE_CALLS: tuple[dict[str, str], ...] = ({"content": CONTENT}, {"content": ""}, {})


@dataclass(frozen=True)
class LearnedCalls:
    """`as_text`: the template wants arguments as JSON in a string, not as an object."""

    format: CallFormat
    as_text: bool


def learn_calls(template: ChatTemplate, alphabet: Alphabet, reasoning: ReasoningFormat | None) -> LearnedCalls | None:
    """None if the template does not say, or says something else than we can read back."""
    for as_text in (False, True):
        probe = Probe(template, alphabet, as_text)
        for fields in _BESIDE_CALLS:
            texts = _calls_written(probe, fields)
            format = _format(texts) if texts else None
            if format is not None and _reads_back(format, reasoning, alphabet, [*texts, *_answers(probe)]):
                return LearnedCalls(format, as_text)
        if not _wants_text(probe):
            break
    example = _example(Probe(template, alphabet).introduction())
    return None if example is None else LearnedCalls(example, as_text=False)


def _wants_text(probe: Probe) -> bool:
    """Whether the template cannot do with an object: it fails on one, or writes it in Python's manner."""
    written = [text for text in (probe.answer(1, **fields) for fields in _BESIDE_CALLS) if text is not None]
    return not written or any(repr(ARGUMENTS[0]) in text for text in written)


def _calls_written(probe: Probe, fields: Mapping[str, str]) -> list[str]:
    """What stands for one call, and for two if the template has several, in the place of an answer's words."""
    plain = probe.answer(content=CONTENT)
    if plain is None or CONTENT not in plain:
        return []
    end = plain.partition(CONTENT)[2]
    answers = [answer for answer in (probe.answer(count, **fields) for count in (1, 2)) if answer is not None]
    texts = [_without_end(_after_words(answer, plain), end) for answer in answers]
    return [text for text, name in zip(texts, NAMES, strict=False) if name in text]


def _answers(probe: Probe) -> list[str]:
    """Answers that are calls and nothing else, as the model would begin them: after the prompt."""
    prompt = probe.prompt()
    answers = [probe.answer(count, content="") for count in (1, 2)]
    begun = [answer for answer in answers if answer is not None and prompt and answer.startswith(prompt)]
    return [answer.removeprefix(prompt or "") for answer in begun if NAMES[0] in answer]


def _after_words(answer: str, plain: str) -> str:
    """An answer without what comes before its words in any answer, and without the words."""
    before, words, after = answer.partition(CONTENT)
    return after if words else before[num_common(before, plain) :]


def _without_end(text: str, end: str) -> str:
    shared = num_common(text[::-1], end[::-1])
    return text[: len(text) - shared]


def _format(texts: Sequence[str]) -> CallFormat | None:
    first = find_call(texts[0], 0)
    if first is None:
        return None
    before, after = chunks(texts[0][: first.begin]), chunks(texts[0][first.end :])
    if isinstance(first.body, JsonBody) and before[-1:] == ("[",) and after[:1] == ("]",):
        return CallFormat(first.body, section_open=before[:-1], section_close=after[1:])
    between = _between(texts[1]) if len(texts) > 1 else (*after, *before)
    if between is None:
        return None
    open = common_suffix(before, between)
    close = common_prefix(after, between[: len(between) - len(open)])
    return CallFormat(
        body=first.body,
        section_open=before[: len(before) - len(open)],
        open=open,
        close=close,
        section_close=after[len(close) :],
        separator=between[len(close) : len(between) - len(open)],
    )


def _between(text: str) -> Marker | None:
    """What separates two calls."""
    first = find_call(text, 0)
    second: Span | None = None if first is None else find_call(text, 1, first.end)
    return None if first is None or second is None else chunks(text[first.end : second.begin])


def _reads_back(
    format: CallFormat, reasoning: ReasoningFormat | None, alphabet: Alphabet, texts: Sequence[str]
) -> bool:
    """Whether a reader of the format finds in the texts the calls that they were rendered from."""
    if not isinstance(format.body, JsonBody) and not format.open:
        return False
    if isinstance(format.body, TaggedBody) and not format.close:
        return False
    if any(word in format.example for word in (*IDS, *NAMES)):
        return False  # what changes from call to call is no marker
    return all(_calls_in(text, format, reasoning, alphabet) == _calls_meant(text) for text in texts)


def _calls_in(
    text: str, format: CallFormat, reasoning: ReasoningFormat | None, alphabet: Alphabet
) -> list[tuple[str | None, str]]:
    reader = AnswerReader(Expected(calls=format, reasoning=reasoning, tools=SCHEMAS), alphabet)
    deltas = [*reader.read(text), *reader.finish()]
    calls = [delta.tool_call for delta in deltas if delta.tool_call is not None]
    arguments = ["".join(call.arguments for call in calls if call.index == at) for at in range(reader.calls.count)]
    return list(zip([call.name for call in calls if call.id is not None], arguments, strict=True))


def _calls_meant(text: str) -> list[tuple[str | None, str]]:
    calls = zip(NAMES, map(json.dumps, ARGUMENTS), strict=True)
    return [(name, arguments) for name, arguments in calls if name in text]


def _example(introduction: str) -> CallFormat | None:
    """The format that the model is told to use, if calls in the conversation do not show it."""
    for open, close in _EXAMPLE.findall(introduction):
        tags = chunks(open)[-1:] + chunks(close)[:1]
        if len(tags) == 2 and all(is_symbol(tag) or tag[0] in "<[" for tag in tags) and tags[0] != tags[1]:
            return CallFormat(JsonBody(("name",), (("arguments",), ("parameters",))), open=tags[:1], close=tags[1:])
    return None
