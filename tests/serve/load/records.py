"""Records of requests that ran nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from llmc.serve.load.plan import Planned
from llmc.serve.load.records import Record


def record(
    outputs: Sequence[float],
    *,
    begin: float = 0.0,
    sent: float | None = None,
    end: float | None = None,
    prompt: int = 10,
    tokens: int | None = None,
    asked: int | None = None,
    latency: str | None = None,
    error: str | None = None,
) -> Record:
    """Each output one token, and the last one the end, unless told otherwise."""
    count = len(outputs) if tokens is None else tokens
    planned = Planned(0, prompt, count if asked is None else asked, latency=latency)
    last = end if end is not None else (outputs[-1] if outputs else begin)
    return Record(planned, begin, begin if sent is None else sent, tuple(outputs), last, prompt, count, error=error)
