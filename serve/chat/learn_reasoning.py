"""What marks off a model's reasoning, learned from its own template."""

import re
from collections.abc import Iterator
from itertools import chain, pairwise

from llmc.runtime.text.chat import ChatTemplate
from llmc.serve.chat.alphabet import Alphabet, is_symbol
from llmc.serve.chat.answer_reader import AnswerReader, Expected
from llmc.serve.chat.formats import ReasoningFormat, chunks
from llmc.serve.chat.probe import CONTENT, REASONING, Probe

_CLOSING_TAG = re.compile(r"<[^<>\s/]*/[^<>\s]+>|\[/[^\[\]\s]+\]")
_FORMS = (
    {"reasoning_content": REASONING, "content": CONTENT},
    {"content": [{"type": "thinking", "thinking": REASONING}, {"type": "text", "text": CONTENT}]},
)


def learn_reasoning(template: ChatTemplate, alphabet: Alphabet) -> ReasoningFormat | None:
    """From what the template writes, what it takes out of an old answer, or what it writes for one without any."""
    probe = Probe(template, alphabet)
    ways = chain(_written(probe), _taken_out(probe, template.text, alphabet), _empty(probe))
    return next((format for format in ways if _reads_back(format, probe, alphabet)), None)


def _written(probe: Probe) -> Iterator[ReasoningFormat]:
    """Around reasoning that a message has apart from its content."""
    for fields in _FORMS:
        format = _around(probe.answer(**fields) or "")
        if format is not None:
            yield format


def _taken_out(probe: Probe, source: str, alphabet: Alphabet) -> Iterator[ReasoningFormat]:
    """By the tags that the source names: the template splits old answers there, and keeps the end."""
    for tag in dict.fromkeys(_CLOSING_TAG.findall(source)):
        opening = tag.replace("/", "", 1)
        answer = probe.answer(content=f"{opening}\n{REASONING}\n{tag}\n\n{CONTENT}")
        if answer is not None and CONTENT in answer and REASONING not in answer:
            yield ReasoningFormat(chunks(alphabet.read(opening)), chunks(alphabet.read(tag)))


def _empty(probe: Probe) -> Iterator[ReasoningFormat]:
    """A section without reasoning, where the template has the model answer at once."""
    for text in (probe.prompt(enable_thinking=False), (probe.answer(content=CONTENT) or "").partition(CONTENT)[0]):
        found = chunks(text or "")
        for open, close in pairwise(found):
            if close == open[:1] + "/" + open[1:]:
                yield ReasoningFormat((open,), (close,))


def _reads_back(format: ReasoningFormat, probe: Probe, alphabet: Alphabet) -> bool:
    """Whether a reader of the format finds the reasoning that an answer was rendered from, if the template has any."""
    prompt = probe.prompt()
    for fields in _FORMS:
        answer = probe.answer(**fields)
        if answer is None or not prompt or not answer.startswith(prompt) or _around(answer) != format:
            continue
        in_reasoning = "".join(prompt.split()).endswith("".join(format.open))
        reader = AnswerReader(Expected(reasoning=format, in_reasoning=in_reasoning), alphabet)
        deltas = [*reader.read(answer.removeprefix(prompt)), *reader.finish()]
        content = "".join(delta.content for delta in deltas)
        if "".join(delta.reasoning for delta in deltas) != REASONING or not content.startswith(CONTENT):
            return False
    return True


def _around(answer: str) -> ReasoningFormat | None:
    """The tags next to the reasoning in an answer that has it before its content."""
    before, _, after = answer.partition(REASONING)
    between, content, _ = after.partition(CONTENT)
    open, close = chunks(before)[-1:], chunks(between)[:1]
    if content and open and close and _is_tag(open[0]) and _is_tag(close[0]):
        return ReasoningFormat(open, close)
    return None


def _is_tag(chunk: str) -> bool:
    return is_symbol(chunk) or (chunk[0] + chunk[-1]) in ("<>", "[]")
