"""Frozen dataclasses to and from JSON, strictly: an unknown, missing or ill-typed key is an error with its
path.

Understood field types: bool, int, float, str, `X | None`, `tuple[X, ...]`, `Mapping[str, X]`, other
dataclasses.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class JsonMismatch(ValueError):
    """The JSON does not fit the type.

    The message starts with the path of the key, such as `kv.slots[3].window`.
    """


def parse_json(text: bytes) -> Any:
    """JSON text to plain values; duplicate keys, NaN and infinities are refused. Raises JsonMismatch."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise JsonMismatch(f"key {key!r} occurs twice")
            result[key] = value
        return result

    def no_constant(name: str) -> Any:
        raise JsonMismatch(f"{name} is not a JSON number")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except JsonMismatch:
        raise
    except RecursionError as error:
        raise JsonMismatch("nested too deeply") from error
    except ValueError as error:
        raise JsonMismatch(f"not JSON: {error}") from error


def render_json(value: Any) -> bytes:
    """The one canonical text of a plain JSON value: sorted keys, two-space indent, a final newline, UTF-8."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def to_plain(value: Any) -> Any:
    """A dataclass as plain JSON values; every field is written, None as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], value: Any, path: str = "") -> T:
    """Plain JSON values as `cls`. Raises JsonMismatch."""
    return typing.cast(T, _read(cls, value, path))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(kind: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, path)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in args if arg is not type(None))
        return None if value is None else _read(inner, value, path)
    if origin is tuple:
        items = _expect(list, value, path)
        return tuple(_read(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if origin is Mapping:
        pairs = _expect(dict, value, path)
        return {key: _read(args[1], item, _join(path, key)) for key, item in pairs.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise JsonMismatch(f"{path}: {value} does not fit a float") from None
    return _expect(kind, value, path)


def _read_dataclass(cls: type, value: Any, path: str) -> Any:
    given = _expect(dict, value, path)
    hints = _hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for key in given:
        if key not in names:
            raise JsonMismatch(f"{_join(path, key)}: unknown key")
    for name in names:
        if name not in given:
            raise JsonMismatch(f"{_join(path, name)}: missing")
    fields = {name: _read(hints[name], given[name], _join(path, name)) for name in names}
    try:
        return cls(**fields)
    except JsonMismatch:
        raise
    except ValueError as error:
        raise JsonMismatch(f"{path or 'top level'}: {error}") from error


def _expect(kind: Any, value: Any, path: str) -> Any:
    wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if wrong:
        names = {dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number"}
        raise JsonMismatch(f"{path or 'top level'}: expected {names.get(kind, kind.__name__)}, got {_brief(value)}")
    return value


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
