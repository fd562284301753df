"""Finds one call in what a template wrote: where it begins and ends, and what its body is made of."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from llmc.serve.chat.formats import (
    Body,
    JsonBody,
    NamedBody,
    Path,
    Slot,
    TaggedBody,
    chunks,
    common_prefix,
    common_suffix,
)
from llmc.serve.chat.probe import ARGUMENTS, IDS, NAMES

_DECODER = json.JSONDecoder()
_ARGUMENT_KEYS = ("arguments", "parameters")  # models mix them up, whichever the template has


@dataclass(frozen=True)
class Span:
    """A call's body in a text, from `begin` to `end`."""

    begin: int
    end: int
    body: Body


def find_call(text: str, index: int, start: int = 0) -> Span | None:
    """The first place, from `start` on, that holds the probe's call of this index."""
    return _json(text, index, start) or _named(text, index, start) or _tagged(text, index, start)


def _json(text: str, index: int, start: int) -> Span | None:
    for begin, end, value in _objects(text, start):
        name = _path_to(value, lambda item: item == NAMES[index])
        arguments = _path_to(value, lambda item: _as_object(item) == ARGUMENTS[index])
        if name and arguments:
            return Span(begin, end, JsonBody(name, tuple(dict.fromkeys((arguments, *_alike(arguments))))))
    return None


def _named(text: str, index: int, start: int) -> Span | None:
    for begin, end, value in _objects(text, start):
        name = text.rfind(NAMES[index], start, begin)
        if value == ARGUMENTS[index] and name >= 0:
            before_id, id, after_id = text[name + len(NAMES[index]) : begin].partition(IDS[index])
            slot: tuple[str | Slot, ...] = (Slot.ID, *chunks(after_id)) if id else ()
            return Span(name, end, NamedBody((*chunks(before_id), *slot)))
    return None


def _tagged(text: str, index: int, start: int) -> Span | None:
    """Keys and values after the name, in their order, with something in between that marks them off."""
    name = text.find(NAMES[index], start)
    places, at = [], name
    for word in [NAMES[index], *(str(part) for item in ARGUMENTS[index].items() for part in item)]:
        at = text.find(word, at) if at >= 0 else -1
        places.append((at, at + len(word)))
    if any(at < 0 for at, _ in places):
        return None
    gaps = [text[end:following] for (_, end), (following, _) in pairwise(places)]
    after = text[places[-1][1] :]
    key_open = common_suffix(chunks(gaps[0]), chunks(gaps[2]))
    value_close = common_prefix(chunks(gaps[2])[: -len(key_open) or None], chunks(after))
    key_close = chunks(gaps[1])
    if not (key_open and key_close and value_close):
        return None
    end = after.find(value_close[-1]) + len(value_close[-1]) + places[-1][1]
    name_close = chunks(gaps[0])[: -len(key_open)]
    lead, trail = gaps[1][len(gaps[1].rstrip()) :], after[: -len(after.lstrip())]
    return Span(name, end, TaggedBody(name_close, key_open, key_close, value_close, lead, trail))


def _objects(text: str, start: int) -> Iterator[tuple[int, int, Any]]:
    """Every object of JSON in the text, those inside of others too."""
    at = text.find("{", start)
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
            yield at, end, value
        except (ValueError, RecursionError):
            pass
        at = text.find("{", at + 1)


def _path_to(value: Any, is_it: Any) -> Path:
    """Keys that lead to what is looked for, the shortest way; empty if there is none."""
    level: list[tuple[Path, Any]] = [((), value)]
    while level:
        inside = [
            ((*path, key), item) for path, found in level if isinstance(found, dict) for key, item in found.items()
        ]
        found_at = next((path for path, item in inside if is_it(item)), None)
        if found_at is not None:
            return found_at
        level = inside
    return ()


def _as_object(item: Any) -> Any:
    if not isinstance(item, str):
        return item
    try:
        return json.loads(item)
    except ValueError:
        return None


def _alike(path: Path) -> list[Path]:
    return [(*path[:-1], key) for key in _ARGUMENT_KEYS] if path[-1] in _ARGUMENT_KEYS else []
