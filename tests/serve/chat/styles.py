"""Chat templates in the manners in which published models call tools and reason, and answers, token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Output
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.chat import ChatTemplate
from llmc.runtime.text.tokenizer import Tokenizer
from llmc.serve.chat.style import ChatStyle
from llmc.serve.protocol.delta import Delta
from tests.runtime.sample_tokenizers import KINDS

TEMPLATES = Path(__file__).parent / "templates"
STYLES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
_SPECIAL = re.compile(r"<\|\w+\|>|\[/?[A-Z_]+\]")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "deep": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "time_of")]


@dataclass(frozen=True)
class Model:
    """A style with the template and the tokenizer that it was learned from. Special tokens are those it spells."""

    template: ChatTemplate
    tokenizer: Tokenizer
    style: ChatStyle

    def ids(self, text: str) -> list[int]:
        """Of an answer; what spells a special token is one."""
        return self.tokenizer.encode_marked(self.tokenizer.mark_control(text))


@cache
def model(name: str, split_reasoning: bool = True) -> Model:
    return model_of((TEMPLATES / f"{name}.jinja").read_text(), split_reasoning)


def model_of(source: str, split_reasoning: bool = True) -> Model:
    inner = KINDS["byte_level"]()
    specials = sorted({*_SPECIAL.findall(source), "<s>", "</s>"})
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer(inner, SpecialTokens(None, (), None, False), config)
    template = ChatTemplate(source, tokenizer)
    return Model(template, tokenizer, ChatStyle.learn(template, tokenizer, split_reasoning))


@dataclass
class Message:
    """What deltas add up to. `calls`: name and arguments of each."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> Message:
        for delta in deltas:
            self.content += delta.content
            self.reasoning += delta.reasoning
            call = delta.tool_call
            if call is not None and call.id is not None:
                assert call.name and call.index == len(self.calls) and not call.arguments
                self.calls.append((call.name, ""))
                self.ids.append(call.id)
            elif call is not None:
                assert call.name is None and call.index == len(self.calls) - 1, "only the last call goes on"
                name, arguments = self.calls[-1]
                self.calls[-1] = name, arguments + call.arguments
        return self

    @property
    def seen(self) -> tuple[str, str, list[tuple[str, str]]]:
        """Without the ids, which are drawn."""
        return self.content, self.reasoning, self.calls


def outputs(of: Model, text: str) -> list[Output]:
    """An answer as an engine gives it."""
    ids = of.ids(text)
    answer = Answer(SamplingParams(), of.tokenizer)
    reasons = [None] * (len(ids) - 1) + [FinishReason.LENGTH]
    return [answer.accept(token, None, reason) for token, reason in zip(ids, reasons, strict=False)]


def read(of: Model, text: str, tools: Sequence[Mapping[str, Any]] = TOOLS, prompt: str = "") -> Message:
    reader = of.style.reader(tools, of.ids(prompt))
    message = Message()
    for output in outputs(of, text):
        message.add(reader.feed(output.text, output.marks))
    return message.add(reader.finish())


def arguments(message: Message) -> list[tuple[str, Any]]:
    return [(name, json.loads(text)) for name, text in message.calls]
