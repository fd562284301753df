"""Reads the fields of a JSON object, each by its type and range. What is left at the end is unknown, and refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from llmc.serve.protocol.errors import ApiError, bad
from llmc.serve.protocol.json_body import json_type
from llmc.serve.protocol.rules import REFUSED, UNREAD, Neutral


class Fields:
    """One object of a request. `null` counts as absent everywhere. Errors name the field as `where` + its name."""

    def __init__(self, body: Mapping[str, Any], where: str = "") -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._where = where

    def take(self, name: str) -> Any:
        """The value as it is, None if absent."""
        return self._left.pop(name, None)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._mistyped(name, "true or false", value)
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mistyped(name, "an integer", value)
        if not low <= value <= high:
            raise self.error(name, f"must be in {low}..{high}, got {value}")
        return value

    def text(self, name: str, most: int) -> str | None:
        """A string of 1 to `most` characters."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._mistyped(name, "a string", value)
        if not 1 <= len(value) <= most:
            raise self.error(name, f"must have 1 to {most} characters, got {len(value)}")
        return value

    def choice(self, name: str, options: Sequence[str]) -> str | None:
        value = self.take(name)
        if value is None or (isinstance(value, str) and value in options):
            return value
        raise self.error(name, f"must be one of {', '.join(options)}, got {brief(value)}")

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self._mistyped(name, "an object", value)
        return value

    def objects(self, name: str, most: int) -> list[dict[str, Any]] | None:
        """An array of at most `most` objects."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._mistyped(name, "an array of objects", value)
        if len(value) > most:
            raise self.error(name, f"has {len(value)} items, at most {most} are allowed")
        return value

    def finish(self, *, tables: bool = True) -> None:
        """What nobody took: ignored, accepted if neutral, or refused, by the tables of serve/protocol/rules.py."""
        for name, value in self._left.items():
            if tables and name in UNREAD:
                continue
            rule = REFUSED.get(name) if tables else None
            if rule is None:
                raise self.error(name, "is not a field that is known here", "unknown_field")
            self._check(name, value, rule)

    def refuse(self, name: str, rule: Neutral) -> None:
        """A field that only this object has, and that would ask for what there is not."""
        if (value := self.take(name)) is not None:
            self._check(name, value, rule)

    def _check(self, name: str, value: Any, rule: Neutral) -> None:
        if not is_neutral(value, rule):
            raise self.error(name, f"is not supported: {rule.why}", "unsupported_field")

    def error(self, name: str, what: str, code: str = "invalid_value") -> ApiError:
        return bad(f"{self._where}{_clipped(name)} {what}", f"{self._where}{_clipped(name)}", code)

    def _mistyped(self, name: str, expected: str, value: object) -> ApiError:
        return self.error(name, f"must be {expected}, got {json_type(value)}", "invalid_type")


def is_neutral(value: Any, rule: Neutral) -> bool:
    """Whether a value asks for nothing; 1 is not true here, as it is to Python."""
    return any(type(value) is type(same) and value == same for same in rule.values)


def brief(value: object) -> str:
    return _clipped(repr(value)) if isinstance(value, str | int | float) else json_type(value)


def _clipped(text: str) -> str:
    return text if len(text) <= 64 else text[:61] + "..."
