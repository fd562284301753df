"""A request to /v1/responses: a chat, spelled otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmc.serve.protocol.chat import ChatRequest, read_chat
from llmc.serve.protocol.errors import bad
from llmc.serve.protocol.fields import Fields
from llmc.serve.protocol.generation import MAX_INT
from llmc.serve.protocol.messages import MAX_MESSAGES
from llmc.serve.protocol.rules import Neutral

_STATELESS = "nothing is stored here: send the whole conversation as input"
REFUSED = {
    "previous_response_id": Neutral(_STATELESS),
    "conversation": Neutral(_STATELESS),
    "prompt": Neutral(_STATELESS),
    "background": Neutral(_STATELESS, (False,)),
    "max_tool_calls": Neutral("there are no tools of the server's own"),
    "include": Neutral("answers have all there is", ([], ["reasoning.encrypted_content"])),
    "truncation": Neutral("inputs are not cut", ("disabled",)),
    "context_management": Neutral("inputs are not cut", ([],)),
}
# Fields that are the same in a chat.
_SAME = (
    *("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user", "metadata", "service_tier", "store"),
    *("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias"),
    *(
        "latency",
        "priority",
        "cache_salt",
        "chat_template_kwargs",
        "safety_identifier",
        "prompt_cache_key",
        "verbosity",
    ),
)


@dataclass(frozen=True)
class ResponsesRequest:
    """`stated` is what the response repeats of its request."""

    chat: ChatRequest
    stated: Mapping[str, Any]


def read_responses(body: Mapping[str, Any]) -> ResponsesRequest:
    """Raises ApiError."""
    fields = Fields(body)
    chat: dict[str, Any] = {name: value for name in _SAME if (value := fields.take(name)) is not None}
    for name, rule in REFUSED.items():
        fields.refuse(name, rule)
    instructions = fields.text("instructions", 2**22)
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat["messages"] = messages + _messages(fields.take("input"))
    chat["max_completion_tokens"] = fields.integer("max_output_tokens", 1, MAX_INT)
    given_tools = fields.objects("tools", 128) or []
    chat["tools"] = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(given_tools)]
    chat["tool_choice"] = choice = fields.take("tool_choice")
    if (effort := _effort(fields)) is not None:
        chat["reasoning_effort"] = effort
    _check_format(fields)
    if (options := fields.mapping("stream_options")) is not None:
        Fields(options, "stream_options.").boolean("include_obfuscation")
    fields.integer("top_logprobs", 0, 0)
    fields.finish()
    stated = {
        "instructions": instructions,
        "max_output_tokens": chat["max_completion_tokens"],
        "tools": given_tools,
        "tool_choice": choice or "auto",
        "parallel_tool_calls": chat.get("parallel_tool_calls", True),
        "temperature": chat.get("temperature"),
        "top_p": chat.get("top_p"),
        "reasoning": {"effort": effort, "summary": None},
        "metadata": chat.get("metadata") or {},
        "user": chat.get("user"),
    }
    return ResponsesRequest(read_chat(chat), stated)


def _messages(given: Any) -> list[dict[str, Any]]:
    """Items of a conversation: messages, calls of tools and what they gave, and reasoning before what it led to."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise bad(f"input must be a string or an array of 1 to {MAX_MESSAGES} items", "input", "invalid_type")
    messages: list[dict[str, Any]] = []
    for at, item in enumerate(given):
        _add(messages, item, f"input[{at}]")
    for message in messages:
        if message.get("content") is None and message["role"] == "assistant" and not message.get("tool_calls"):
            message["content"] = ""
    return messages


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        message = {name: item.get(name) for name in ("role", "content")}
        if _continues(messages, message["role"]):
            messages[-1]["content"] = message["content"]
        else:
            messages.append(message)
    elif kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        called = {"id": item.get("call_id"), "type": "function", "function": call}
        messages[-1].setdefault("tool_calls", []).append(called)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "reasoning":
        parts = item.get("content") or []
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        text = "".join(text for text in texts if isinstance(text, str))
        messages.append({"role": "assistant", **({"reasoning_content": text} if text else {})})
    else:
        raise bad(f"{where} is no item of a text conversation", where, "unsupported_content")


def _continues(messages: list[dict[str, Any]], role: Any) -> bool:
    """Whether a message belongs to the reasoning before it."""
    return role == "assistant" and bool(messages) and set(messages[-1]) <= {"role", "reasoning_content"}


def _tool(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    if given.get("type") != "function":
        raise bad(f"{where}: only tools of type function are supported", where, "unsupported_field")
    return {"type": "function", "function": {name: value for name, value in given.items() if name != "type"}}


def _effort(fields: Fields) -> Any:
    reasoning = Fields(fields.mapping("reasoning") or {}, "reasoning.")
    effort = reasoning.take("effort")
    reasoning.refuse("summary", Neutral("reasoning is given as it is", ("auto",)))
    reasoning.finish(tables=False)
    return effort


def _check_format(fields: Fields) -> None:
    text = Fields(fields.mapping("text") or {}, "text.")
    text.refuse("format", Neutral("answers cannot be bound to a grammar yet", ({"type": "text"},)))
    text.refuse("verbosity", Neutral("no model here has such a setting", ("medium",)))
    text.finish(tables=False)
