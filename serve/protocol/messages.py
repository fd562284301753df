"""The messages of a chat, from the wire to what chat templates read."""

from collections.abc import Mapping
from typing import Any

import orjson

from llmc.serve.protocol.errors import bad
from llmc.serve.protocol.fields import Fields

MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 128
_MAX_NAME = 256
_MAX_TEXT = 4 * 2**20
# What OpenAI's client puts into a message that it read and sends back: empty, it says nothing.
_EMPTY = ("refusal", "audio", "annotations", "function_call", "tool_calls")
_REASONING = ("reasoning_content", "reasoning", "thinking")


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """Raises ApiError. Roles are the template's business, which refuses what it does not know in its own words."""
    given = fields.objects("messages", MAX_MESSAGES)
    if not given:
        raise fields.error("messages", "must hold at least one message", "missing_field")
    return [_message(message, f"messages[{at}].") for at, message in enumerate(given)]


def _message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = Fields({k: v for k, v in given.items() if not (k in _EMPTY and not v)}, where)
    role = fields.text("role", _MAX_NAME)
    if role is None:
        raise fields.error("role", "is missing", "missing_field")
    # Newer clients call the system "developer"; templates know it as before.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(fields, where)
    content = read_content(fields.take("content"), f"{where}content")
    for name in _REASONING:
        if (text := fields.text(name, _MAX_TEXT)) is not None:
            message[name] = text
    if content is None and not calls and not (role == "assistant" and len(message) > 1):
        raise fields.error("content", "is missing: only an assistant's tool_calls can stand alone", "missing_field")
    if content is not None:
        message["content"] = content
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if (text := fields.text(name, _MAX_NAME)) is not None:
            message[name] = text
    fields.finish(tables=False)
    return message


def read_content(content: Any, where: str) -> str | None:
    """A text, or parts of type text, which are joined by line ends as vLLM joins them."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} must be a string or an array of parts", where, "invalid_type")
    return "\n".join(_part(part, f"{where}[{at}]") for at, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise bad(f"{where}: only parts of type text are supported", where, "unsupported_content")
    if kind == "refusal":
        text = part.get("refusal")
    if not isinstance(text, str):
        raise bad(f"{where}.text must be a string", f"{where}.text", "invalid_type")
    return text


def _tool_calls(fields: Fields, where: str) -> list[dict[str, Any]]:
    given = fields.objects("tool_calls", MAX_TOOL_CALLS) or []
    return [_tool_call(call, f"{where}tool_calls[{at}].") for at, call in enumerate(given)]


def _tool_call(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arguments are JSON's text on the wire; templates read them as an object."""
    fields = Fields(given, where)
    call_id = fields.text("id", _MAX_NAME)
    fields.choice("type", ("function",))
    function = fields.mapping("function")
    if function is None:
        raise fields.error("function", "is missing", "missing_field")
    fields.take("index")  # of a stream's delta that was kept
    fields.finish(tables=False)
    inner = Fields(function, f"{where}function.")
    name = inner.text("name", _MAX_NAME)
    if name is None:
        raise inner.error("name", "is missing", "missing_field")
    arguments = inner.take("arguments")
    inner.finish(tables=False)
    read = {"name": name, "arguments": _arguments(arguments, f"{where}function.arguments")}
    return {"type": "function", "function": read, **({"id": call_id} if call_id else {})}


def _arguments(given: Any, where: str) -> Any:
    if isinstance(given, dict):
        return given
    try:
        value = orjson.loads(given or "{}") if given is None or isinstance(given, str) else None
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise bad(f"{where} must be the text of a JSON object", where, "invalid_value")
    return value
