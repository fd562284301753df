"""The calls of one answer, as deltas: each gets an id and a name, then its arguments piece by piece."""

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any

from llmc.serve.protocol.delta import ToolCallDelta

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments of each tool, by its name

_ALPHANUMERIC = string.ascii_letters + string.digits
_NAME = re.compile(r"[\w.:/-]{1,128}")


def is_name(text: str) -> bool:
    """Whether a tool may be called so."""
    return _NAME.fullmatch(text) is not None


def new_call_id() -> str:
    """Nine letters and digits: as many as the strictest templates (Mistral's) take, and exactly as many."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Calls:
    """Counts calls and tells `emit` of them."""

    def __init__(self, tools: Schemas, emit: Callable[[ToolCallDelta], None]) -> None:
        self.tools = tools
        self._emit = emit
        self.count = 0
        self.is_open = False

    def begin(self, name: str) -> None:
        self.count += 1
        self.is_open = True
        self._emit(ToolCallDelta(self.count - 1, new_call_id(), name))

    def add(self, arguments: str) -> None:
        if arguments:
            self._emit(ToolCallDelta(self.count - 1, arguments=arguments))

    def end(self) -> None:
        self.is_open = False

    def type_of(self, tool: str, key: str) -> object:
        """What the schema says of an argument's type; None if it says nothing."""
        properties = self.tools.get(tool, {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return schema.get("type") if isinstance(schema, Mapping) else None


def value_of(text: str, declared: object) -> str:
    """The JSON of an argument that was written as plain text: a string, if it reads as nothing else that it may be."""
    if declared == "string":
        return json.dumps(text, ensure_ascii=False)
    words = {"True": "true", "False": "false", "None": "null"}
    stripped = words.get(text.strip(), text.strip())
    try:
        value = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if declared is None and isinstance(value, str):
        return json.dumps(text, ensure_ascii=False)  # quotes that nobody asked for belong to the text
    return stripped


def _refuse(constant: str) -> None:
    raise ValueError(constant)
