"""Conversations that are rendered only to see what the template writes around their words."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmc.runtime.errors import ChatTemplateError
from llmc.runtime.text.chat import ChatTemplate
from llmc.serve.chat.alphabet import Alphabet

# Words that no template has, and that end in no way that a marker begins or ends in.
QUESTION = "Zquestion of the probe qZ"
CONTENT = "Zcontent of the probe qZ"
REASONING = "Zreasoning of the probe qZ"
NAMES = ("zq_first_tool", "zq_second_tool")
IDS = ("zqIdOne01", "zqIdTwo02")  # nine letters and digits: the strictest templates take them
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"zq_key_a": "zq value one", "zq_key_b": 271},
    {"zq_key_a": "zq value two", "zq_key_b": 828},
)
_PROPERTIES = {"zq_key_a": {"type": "string"}, "zq_key_b": {"type": "integer"}}
SCHEMAS = {name: {"type": "object", "properties": _PROPERTIES, "required": ["zq_key_a"]} for name in NAMES}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


class Probe:
    """Renders with a template. `as_text`: arguments are given as OpenAI's clients send them, JSON in a string."""

    def __init__(self, template: ChatTemplate, alphabet: Alphabet, as_text: bool = False) -> None:
        self._template = template
        self._alphabet = alphabet
        self._as_text = as_text

    def prompt(self, **variables: Any) -> str | None:
        """What the model is to answer to, from the user's message on. None if the template refuses it."""
        text = self._render([], add_generation_prompt=True, **variables)
        return None if text is None else text.rpartition(QUESTION)[2]

    def introduction(self) -> str:
        """What the model is told of its tools before it is asked anything."""
        return (self._render([], add_generation_prompt=True) or "").partition(QUESTION)[0]

    def answer(self, num_calls: int = 0, **fields: Any) -> str | None:
        """All after the user's message, if the assistant answers with these fields and calls."""
        calls = [self._call(index) for index in range(num_calls)]
        message = {"role": "assistant", **fields, **({"tool_calls": calls} if calls else {})}
        text = self._render([message], add_generation_prompt=False)
        return None if text is None else text.rpartition(QUESTION)[2]

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **variables: Any
    ) -> str | None:
        conversation = [{"role": "user", "content": QUESTION}, *messages]
        try:
            text = self._template.render(conversation, add_generation_prompt, **{"tools": _TOOLS, **variables})
        except ChatTemplateError:
            return None
        return self._alphabet.read(text)

    def _call(self, index: int) -> dict[str, Any]:
        arguments = json.dumps(ARGUMENTS[index]) if self._as_text else ARGUMENTS[index]
        return {"id": IDS[index], "type": "function", "function": {"name": NAMES[index], "arguments": arguments}}
