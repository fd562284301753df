"""The model's chat template: messages to ids, as transformers renders it, but with user text walled off.

A message may spell a control token. Before rendering, every such spelling in the messages is broken by a mark
that occurs nowhere else; after rendering, the spellings that are whole are the template's own, and the marks
are taken out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from llmc.runtime.artifact.artifact import CHAT_TEMPLATE, EngineFiles
from llmc.runtime.artifact.bounds import plain
from llmc.runtime.errors import ChatTemplateError, ManifestInvalid
from llmc.runtime.text.template_sandbox import MAX_CHARS, MAX_SECONDS, TemplateSandbox, render_capped
from llmc.runtime.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD2, 0xFDF0))
_MAX_DEPTH = 16
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the first that is there counts, as in transformers


@dataclass(frozen=True)
class FittedChat:
    """A conversation made to fit: its ids, and the messages that they are of, `num_dropped` fewer than before."""

    ids: list[int]
    messages: list[Message]
    num_dropped: int


class ChatTemplate:
    """A compiled template, with another one for conversations with tools where the model has it.

    Raises ChatTemplateError if a source is no template.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, tool_use: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._source = source + (tool_use or "")
        self._spellings = _Spellings(tokenizer.special_contents)
        self._template = _compiled(source)
        self._tool_use = self._template if tool_use is None else _compiled(tool_use)

    @staticmethod
    def source(files: EngineFiles, tokenizer: Tokenizer) -> str | None:
        """The engine's template, from chat_template.jinja or the tokenizer's config; None if it has none."""
        if files.has(CHAT_TEMPLATE):
            try:
                return files.read_bytes(CHAT_TEMPLATE).decode()
            except UnicodeDecodeError as error:
                raise ManifestInvalid(f"{files.path(CHAT_TEMPLATE)}: not UTF-8: {error}") from error
        source = tokenizer.config.get("chat_template")
        return source if isinstance(source, str) else _named(source).get("default")

    @staticmethod
    def tool_use_source(tokenizer: Tokenizer) -> str | None:
        """The template that transformers takes in the default one's place where tools are given."""
        return _named(tokenizer.config.get("chat_template")).get("tool_use")

    @property
    def text(self) -> str:
        """The template itself, with that for tools."""
        return self._source

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as text, control tokens spelled out. For people; ids come from `encode`."""
        return self._render(messages, add_generation_prompt, variables, mark="")

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Ids of the conversation. BOS is there if the template writes it. Raises ChatTemplateError."""
        mark = self._unused_character(messages, variables)
        text = self._render(messages, add_generation_prompt, variables, mark)
        marked = self._tokenizer.mark_control(text)
        return self._tokenizer.encode_marked(marked.replace(mark, ""))

    def fit(self, messages: Sequence[Message], most_tokens: int, **variables: Any) -> FittedChat:
        """`encode` without the oldest turns, as few of them as make the ids `most_tokens` at most.

        A turn is a user's message with all that follows up to the next one. What comes before the first (a system
        message) stays, and so does the last turn, alone in the end even if it is too long. Raises ChatTemplateError.
        """
        given = list(_checked(messages))
        users = [at for at, message in enumerate(given) if message.get("role") == "user"] or [0]
        for start in users:
            kept = given[: users[0]] + given[start:]
            ids = self.encode(kept, **variables)
            if len(ids) <= most_tokens:
                break
        return FittedChat(ids, kept, len(given) - len(kept))

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        mark: str,
    ) -> str:
        breaker = _Breaker(self._spellings, mark)
        # As in transformers, a key whose value is null counts as absent: templates print "None" otherwise.
        present = [{k: v for k, v in breaker.plain(m, 0).items() if v is not None} for m in _checked(messages)]
        ready = [_with_reasoning(message) for message in present]
        data = {
            "tools": None,
            "documents": None,
            **self._tokenizer.template_variables,
            **breaker.plain(variables, 0),
            "messages": ready,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            template = self._template if data["tools"] is None else self._tool_use
            return render_capped(template, data, MAX_SECONDS)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refused the messages: {_one_line(error)}") from error
        except Exception as error:  # a template's own mistakes surface as any Python error
            raise ChatTemplateError(
                f"the chat template failed on the messages: {type(error).__name__}: {_one_line(error)}"
            ) from error

    def _unused_character(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        used = set().union(*_strings([list(messages), dict(variables), self._source], 0))
        for character in _NONCHARACTERS:
            if character not in used:
                return character
        raise ChatTemplateError("the messages use every Unicode noncharacter; remove them")


def _compiled(source: str) -> jinja2.Template:
    try:
        return TemplateSandbox().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ChatTemplateError(f"the chat template cannot be compiled: {_one_line(error)}") from error


def _named(templates: object) -> dict[str, str]:
    """Of tokenizer_config.json's list of several templates."""
    entries = [entry for entry in templates if isinstance(entry, Mapping)] if isinstance(templates, list) else []
    named = {entry.get("name"): entry.get("template") for entry in entries}
    return {str(name): template for name, template in named.items() if isinstance(template, str)}


class _Breaker:
    """Copies data for the template as plain JSON values, with spelled control tokens broken by `mark`."""

    def __init__(self, spellings: "_Spellings", mark: str) -> None:
        self._spellings = spellings
        self._mark = mark

    def plain(self, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ChatTemplateError(f"the messages are nested more than {_MAX_DEPTH} deep")
        value = plain(value)
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float):
            if isinstance(value, kind):
                return kind(value)  # of a subclass (an enum's member), only the number
        if isinstance(value, str):
            return self.broken(str.__str__(value))
        if isinstance(value, Mapping):
            return {self.plain(key, depth + 1): self.plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self.plain(item, depth + 1) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        raise ChatTemplateError(f"messages hold text, numbers, lists and objects, not {type(value).__name__}")

    def broken(self, text: str) -> str:
        """`text` with the mark after the first character of each spelling, also of one that its end only
        begins.
        """
        if not self._mark:
            return text
        pieces, last = [], 0
        for at in self._spellings.starts(text):
            pieces += [text[last : at + 1], self._mark]
            last = at + 1
        return "".join([*pieces, text[last:]])


class _Spellings:
    """How the tokenizer's control tokens look in text, prepared for search."""

    def __init__(self, spellings: Sequence[str]) -> None:
        alternatives = "|".join(re.escape(text) for text in spellings if text)
        # A lookahead finds overlapping occurrences too.
        self._pattern = re.compile(f"(?={alternatives})") if alternatives else None
        self._beginnings = {text[:size] for text in spellings for size in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._single = frozenset(text for text in spellings if len(text) == 1)

    def starts(self, text: str) -> list[int]:
        """Where a spelling starts, or the end of the text starts to be one (trailing space set aside)."""
        if self._single.intersection(text):
            raise ChatTemplateError("the messages hold a one-character control token, which cannot be plain text")
        found = {match.start() for match in self._pattern.finditer(text)} if self._pattern else set()
        end = len(text.rstrip())
        sizes = range(min(self._longest, end), 0, -1)
        found.update(end - size for size in sizes if text[end - size : end] in self._beginnings)
        return sorted(found)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message's reasoning under the names that templates read, whichever of its names it came under."""
    stated = [message[name] for name in _REASONING if message.get(name) is not None]
    return {"thinking": stated[0], **message, "reasoning_content": stated[0]} if stated else message


def _checked(messages: Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, str | Mapping) or not all(isinstance(message, Mapping) for message in messages):
        raise ChatTemplateError("messages must be a list of objects with a role and a content")
    if not messages:
        raise ChatTemplateError("there are no messages")
    size = sum(map(len, _strings(list(messages), 0)))
    if size > MAX_CHARS:
        raise ChatTemplateError(f"the messages have {size} characters, at most {MAX_CHARS} are allowed")
    return messages


def _strings(value: Any, depth: int) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif depth <= _MAX_DEPTH and isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item, depth + 1)
    elif depth <= _MAX_DEPTH and isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
