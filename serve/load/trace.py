"""A workload out of a file: JSON lines, one request each.

    {"arrival": 0.25, "prompt_len": 180, "output_len": 64}
    {"arrival": 0.9, "prompt": "Why is the sky blue?", "output_len": 32, "class": "interactive"}

`prompt` is text or a list of token ids; `prompt_len` asks for a random one. With `arrival` (seconds) in every line
requests are sent when it says; with none, in a closed loop.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmc.serve.load.plan import Planned
from llmc.serve.load.refusal import BenchRefused

_FIELDS = {"arrival", "prompt", "prompt_len", "output_len", "class"}


def read_trace(path: Path) -> list[Planned]:
    """The requests of a trace, in order of arrival. BenchRefused, with the line, for what is none."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append(_request(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise BenchRefused(f"{path}:{number}: {error}") from error
    timed = [request for request in found if request.arrival is not None]
    if not found:
        raise BenchRefused(f"{path}: no requests")
    if timed and len(timed) != len(found):
        raise BenchRefused(f"{path}: {len(timed)} of {len(found)} lines have an arrival: give it to all or to none")
    found.sort(key=lambda request: request.arrival or 0.0)
    return [replace(request, index=index) for index, request in enumerate(found)]


def _request(line: Any) -> Planned:
    if not isinstance(line, dict):
        raise ValueError("a line is an object")
    if unknown := sorted(set(line) - _FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}")
    if ("prompt" in line) == ("prompt_len" in line):
        raise ValueError("give either prompt or prompt_len")
    prompt = line.get("prompt")
    if isinstance(prompt, list):
        prompt = tuple(_count(token, "a token", 0) for token in prompt)
    elif prompt is not None and not isinstance(prompt, str):
        raise ValueError("prompt is text or a list of token ids")
    length = _count(line["prompt_len"], "prompt_len") if prompt is None else len(prompt)
    arrival = line.get("arrival")
    if arrival is not None and not (isinstance(arrival, int | float) and 0 <= arrival < float("inf")):
        raise ValueError(f"arrival is {arrival!r}, must be seconds from 0 on")
    return Planned(
        0,
        length if not isinstance(prompt, str) else 0,  # of a text only the server knows it
        _count(line.get("output_len"), "output_len"),
        arrival=None if arrival is None else float(arrival),
        latency=line.get("class"),
        given=prompt,
    )


def _count(value: Any, name: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, must be an integer from {least} on")
    return value
