"""Which setting of a config.json transformers' code fails over, where its own words (`KeyError: 'x'`, `modulo by zero`)
do not say: the one without which, or with 1 in its place, that code does not fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmc.compiler.sources.raw_settings import leaves, quiet, replaced, value_of, without

MOST_SECONDS = 20  # of looking, for a model whose module takes long to build


def explained(raw: Mapping[str, Any], attempt: Callable[[dict[str, Any]], object], words: str) -> str:
    """`words` of what `attempt` raised for a raw config, behind the setting at fault where they do not name it."""
    found = setting_at_fault(raw, attempt)
    if found is None or any(name in words for name in (found[0], found[0].replace("_", " "))):
        return words
    return f"{found[0]} is {found[1]!r}, which transformers cannot use: {words}"


def setting_at_fault(raw: Mapping[str, Any], attempt: Callable[[dict[str, Any]], object]) -> tuple[str, Any] | None:
    """Name and value of the first setting that explains by itself why `attempt` raises; numbers below 1 come first."""
    deadline = time.monotonic() + MOST_SECONDS
    with quiet():
        for path in sorted(leaves(raw), key=lambda path: not _is_below_one(value_of(raw, path))):
            for changed in _others(raw, path):
                if time.monotonic() > deadline:
                    return None
                if _passes(attempt, changed):
                    return ".".join(path), value_of(raw, path)
    return None


def _others(raw: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if path != ("model_type",):
        yield without(raw, path)
        if isinstance(value_of(raw, path), int) and value_of(raw, path) != 1:
            yield replaced(raw, path, 1)


def _passes(attempt: Callable[[dict[str, Any]], object], raw: dict[str, Any]) -> bool:
    try:
        attempt(raw)
    except Exception:  # transformers' code raises what it likes
        return False
    return True


def _is_below_one(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < 1
