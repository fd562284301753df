"""The settings of a config.json as it is read, and copies of it with one of them changed or left out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Path = tuple[str, ...]


def leaves(raw: Mapping[str, Any]) -> Iterator[Path]:
    """Everything that could be left out: the innermost settings first, then what holds them."""
    whole: list[Path] = []
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from ((key, *inner) for inner in leaves(value))
            whole.append((key,))
        else:
            yield (key,)
    yield from whole


def value_of(raw: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = raw
    for key in path:
        value = value[key]
    return value


def without(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    changed = copy.deepcopy(dict(raw))
    del value_of(changed, path[:-1])[path[-1]]
    return changed


def replaced(raw: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(dict(raw))
    value_of(changed, path[:-1])[path[-1]] = value
    return changed


@contextmanager
def quiet() -> Iterator[None]:
    """What transformers says of configs that nobody wrote."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
