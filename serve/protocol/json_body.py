"""A request's body, from bytes to an object: bounded before it is parsed, and strict."""

import re
from typing import Any

import numpy as np
import orjson

from llmc.serve.protocol.errors import ApiError, bad

MAX_BODY_BYTES = 8 * 2**20
MAX_DEPTH = 32  # JSON schemas of tools are the deepest things that clients send
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError (400, 413): too large, nested too deep, no JSON (NaN and lone surrogates are none), no object."""
    if len(body) > MAX_BODY_BYTES:
        raise ApiError(413, f"the body has {len(body)} bytes, at most {MAX_BODY_BYTES} are allowed", code="too_large")
    if _depth(body) > MAX_DEPTH:
        raise bad(f"the body is nested more than {MAX_DEPTH} deep", code="too_deep")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise bad(f"the body must be a JSON object, got {json_type(value)}", code="invalid_json")
    return value


def json_type(value: object) -> str:
    """How JSON calls the type of a value."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _depth(body: bytes) -> int:
    """How deep brackets are nested outside of strings."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return 0  # cannot be too deep, which is true of most bodies
    bare = np.frombuffer(_STRINGS.sub(b"", body), np.uint8)
    steps = _STEPS[bare]
    return int(np.cumsum(steps[steps != 0], dtype=np.int64).max(initial=0))
