"""One line an event: JSON, or for people. Never a prompt, an answer or a key; never a control character."""

import contextlib
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_VALUE = 400


class EventLog:
    """Writes to stderr. A reader that has gone does not stop the server."""

    def __init__(self, as_json: bool, out: TextIO | None = None) -> None:
        self._as_json = as_json
        self._out = out

    def event(self, what: str, **facts: Any) -> None:
        clean = {name: _clean(value) for name, value in facts.items() if value is not None}
        if self._as_json:
            now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
            line = orjson.dumps({"time": now, "event": what, **clean}).decode()
        else:
            line = " ".join([what, *(f"{name}={value}" for name, value in clean.items())])
        with contextlib.suppress(OSError):
            print(line, file=self._out or sys.stderr, flush=True)


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return _CONTROL.sub("?", value)[:_MAX_VALUE] if isinstance(value, str) else value
