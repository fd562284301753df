"""A source's own way with text, for comparison: its tokenizer and chat template, run by what owns them.

An HF folder's by transformers; a GGUF's, which nobody else runs here, by the runtime on our own reading of the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import tokenizers

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.model_config import one_line
from llmc.compiler.sources.model_source import ModelSource, SourceFormat
from llmc.compiler.sources.special_tokens import decide_tokens
from llmc.compiler.sources.tokenizer import TokenizerFiles, transformers_tokenizer
from llmc.runtime.errors import ChatTemplateError
from llmc.runtime.text.chat import ChatTemplate, Message
from llmc.runtime.text.tokenizer import Tokenizer


class ChatRefused(Exception):
    """The template does not take these messages."""


class SourceText(Protocol):
    """Ids of texts and back, as the source has it."""

    @property
    def has_chat(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """Of plain text, whatever control tokens it spells, after BOS if the model wants one."""

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens left out."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ready for the answer. Raises ChatRefused."""


def source_text(source: ModelSource) -> SourceText | None:
    """None where the source has no tokenizer. Raises SourceError."""
    if source.tokenizer is None:
        return None
    if source.format is SourceFormat.GGUF:
        return _OfFiles(source, source.tokenizer)
    return _OfTransformers(source)


class _OfTransformers:
    def __init__(self, source: ModelSource) -> None:
        self._tokenizer: Any = transformers_tokenizer(source.path)

    @property
    def has_chat(self) -> bool:
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, split_special_tokens=True)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        try:
            given = [dict(message) for message in messages]
            text = self._tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template fails in whatever way it likes
            raise ChatRefused(one_line(error)) from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


class _OfFiles:
    def __init__(self, source: ModelSource, files: TokenizerFiles) -> None:
        inner = tokenizers.Tokenizer.from_str(files.tokenizer_json)
        self._tokenizer = Tokenizer(inner, decide_tokens(source).tokens, json.loads(files.tokenizer_config_json))
        try:
            self._chat = ChatTemplate(files.chat_template, self._tokenizer) if files.chat_template is not None else None
        except ChatTemplateError as error:
            raise SourceError(f"{source.path}: {error}") from error

    @property
    def has_chat(self) -> bool:
        return self._chat is not None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        assert self._chat is not None, "asked only where there is one"
        try:
            return self._chat.encode(messages)
        except ChatTemplateError as error:
            raise ChatRefused(str(error)) from error
