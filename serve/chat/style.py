"""A model's style of answering, learned once from its chat template, and readers of answers in it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llmc.runtime.text.chat import ChatTemplate, Message
from llmc.runtime.text.tokenizer import Tokenizer
from llmc.serve.chat.alphabet import Alphabet
from llmc.serve.chat.answer_reader import AnswerReader, Expected
from llmc.serve.chat.formats import ReasoningFormat
from llmc.serve.chat.learn_calls import LearnedCalls, learn_calls
from llmc.serve.chat.learn_reasoning import learn_reasoning
from llmc.serve.chat.probe import NAMES, Probe
from llmc.serve.protocol.delta import Tool

_LONGEST_END = 32  # tokens of a prompt in which a section of reasoning may open


@dataclass(frozen=True)
class ChatStyle:
    """`calls` and `reasoning` are None where the template does not say how they look.

    `takes_tools`: the template tells the model of them. Without `split_reasoning`, reasoning stays in the content.
    """

    tokenizer: Tokenizer
    alphabet: Alphabet
    calls: LearnedCalls | None
    reasoning: ReasoningFormat | None
    takes_tools: bool
    split_reasoning: bool

    @classmethod
    def learn(cls, template: ChatTemplate, tokenizer: Tokenizer, split_reasoning: bool = True) -> "ChatStyle":
        """Renders a dozen small conversations; raises nothing."""
        alphabet = Alphabet.of_template(template.text, tokenizer)
        reasoning = learn_reasoning(template, alphabet)
        calls = learn_calls(template, alphabet, reasoning)
        probe = Probe(template, alphabet)
        takes_tools = NAMES[0] in probe.introduction() + (probe.prompt() or "")
        used = (calls.format.example if calls else "") + (reasoning.example if reasoning else "")
        return cls(tokenizer, alphabet.only(used), calls, reasoning, takes_tools, split_reasoning)

    def reader(self, tools: Sequence[Tool], prompt_ids: Sequence[int]) -> AnswerReader:
        """Of one answer to the prompt. Without tools nothing is a call."""
        functions = [tool["function"] for tool in tools]
        expected = Expected(
            calls=self.calls.format if self.calls is not None and functions else None,
            reasoning=self.reasoning,
            in_reasoning=self._is_reasoning_open(prompt_ids),
            split=self.split_reasoning,
            tools={function["name"]: function.get("parameters") or {} for function in functions},
        )
        return AnswerReader(expected, self.alphabet)

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """As the template wants them: it may read a call's arguments as text."""
        if self.calls is None or not self.calls.as_text:
            return messages
        return [_with_text_arguments(message) for message in messages]

    def describe(self) -> dict[str, str | None]:
        """For people: how calls and reasoning are recognised, null where they are not."""
        learned = {"tool_calls": self.calls and self.calls.format, "reasoning": self.reasoning}
        return {name: self.alphabet.written(format.example) if format else None for name, format in learned.items()}

    def _is_reasoning_open(self, prompt_ids: Sequence[int]) -> bool:
        if self.reasoning is None:
            return False
        end = self.alphabet.of_ids(prompt_ids[-_LONGEST_END:], self.tokenizer)
        return "".join(end.split()).endswith("".join(self.reasoning.open))


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message
