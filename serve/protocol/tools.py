"""The functions that a chat may call, and whether it may."""

import re
from typing import Any

from llmc.serve.protocol.fields import Fields, is_neutral
from llmc.serve.protocol.rules import Neutral

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_NO_GRAMMAR = "cannot be promised: answers cannot be bound to a grammar yet; use auto or none"


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    """The tools that the model is told of: none with tool_choice none. Raises ApiError."""
    given = fields.objects("tools", MAX_TOOLS) or []
    tools = [_tool(tool, f"tools[{at}].") for at, tool in enumerate(given)]
    choice = fields.take("tool_choice")
    if isinstance(choice, dict) or choice == "required":
        raise fields.error("tool_choice", _NO_GRAMMAR, "unsupported_field")
    if not is_neutral(choice, Neutral("", (None, "auto", "none"))):
        raise fields.error("tool_choice", "must be auto or none")
    return [] if choice == "none" else tools


def _tool(given: dict[str, Any], where: str) -> dict[str, Any]:
    fields = Fields(given, where)
    if fields.choice("type", ("function",)) is None:
        raise fields.error("type", "is missing: it must be function", "missing_field")
    function = fields.mapping("function")
    if function is None:
        raise fields.error("function", "is missing", "missing_field")
    fields.finish(tables=False)
    return {"type": "function", "function": read_function(Fields(function, f"{where}function."))}


def read_function(fields: Fields) -> dict[str, Any]:
    """Name, description and parameters, in the order in which templates print them."""
    name = fields.text("name", 128)
    if name is None or not _NAME.fullmatch(name):
        raise fields.error("name", "must be a name of letters, digits and _ . : / -")
    description = fields.take("description")
    if description is not None and not isinstance(description, str):
        raise fields.error("description", "must be a string", "invalid_type")
    parameters = fields.mapping("parameters")
    if fields.boolean("strict"):
        raise fields.error("strict", _NO_GRAMMAR, "unsupported_field")
    fields.finish(tables=False)
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return function
