"""A request to /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmc.serve.protocol.delta import Delta
from llmc.serve.protocol.fields import Fields
from llmc.serve.protocol.generation import MAX_INT, Generation, read_generation, read_max_logprobs
from llmc.serve.protocol.messages import read_messages
from llmc.serve.protocol.tools import read_tools

MAX_DOCUMENTS = 128
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "chat_template")


@dataclass(frozen=True)
class ChatRequest:
    """`variables` are those of the chat template, `tools` among them if there are any."""

    generation: Generation
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: Mapping[str, Any]
    parallel_calls: bool = True
    reasoning: bool = True  # shown
    prompt_logprobs: int | None = None

    def shown(self, deltas: Sequence[Delta]) -> list[Delta]:
        """What the request wants to see: reasoning perhaps not, and perhaps one call alone."""
        return [shown for delta in deltas if (shown := self._shown(delta)) is not None]

    def _shown(self, delta: Delta) -> Delta | None:
        call = delta.tool_call
        if call is not None and call.index > 0 and not self.parallel_calls:
            call = None
        shown = Delta(delta.content, delta.reasoning if self.reasoning else "", call)
        return shown if shown != Delta() else None


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Everything that can be checked without the model is. Raises ApiError."""
    fields = Fields(body)
    messages = read_messages(fields)
    tools = read_tools(fields)
    variables = _variables(fields, tools)
    generation = read_generation(fields, max_tokens=_max_tokens(fields), logprobs=_logprobs(fields))
    request = ChatRequest(
        generation=generation,
        messages=messages,
        tools=tools,
        variables=variables,
        parallel_calls=fields.boolean("parallel_tool_calls", True),
        reasoning=fields.boolean("include_reasoning", True),
        prompt_logprobs=None if generation.stream else read_max_logprobs(fields, "prompt_logprobs"),
    )
    fields.finish()
    return request


def _max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens` is the newer name."""
    older = fields.integer("max_tokens", 1, MAX_INT)
    newer = fields.integer("max_completion_tokens", 1, MAX_INT)
    if older is not None and newer is not None and older != newer:
        raise fields.error("max_tokens", f"is {older}, but max_completion_tokens is {newer}")
    return newer if newer is not None else older


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs")
    top = read_max_logprobs(fields, "top_logprobs")
    if top and not wanted:
        raise fields.error("top_logprobs", "goes with logprobs: true")
    return (top or 0) if wanted else None


def _variables(fields: Fields, tools: list[dict[str, Any]]) -> dict[str, Any]:
    variables = dict(fields.mapping("chat_template_kwargs") or {})
    for name in variables:
        if name in _OWN_VARIABLES or not name.isidentifier():
            raise fields.error("chat_template_kwargs", f"cannot set {name!r:.64}")
    if (effort := fields.choice("reasoning_effort", EFFORTS)) is not None:
        variables["reasoning_effort"] = effort
    if (documents := fields.objects("documents", MAX_DOCUMENTS)) is not None:
        variables["documents"] = documents
    variables["add_generation_prompt"] = fields.boolean("add_generation_prompt", True)
    if tools:
        variables["tools"] = tools
    return variables
