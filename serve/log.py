"""One line an event: JSON, or for people. Never a prompt, an answer or a key; never a control character."""

import contextlib
import logging
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


class LibraryLog(logging.Handler):
    """What libraries have to say, as events: their message, and of an exception its type alone."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        self._log.event("library", name=record.name, level=record.levelname, message=record.getMessage(), error=kind)

    @classmethod
    def take(cls, log: EventLog, *names: str) -> None:
        """From these loggers to `log`, and nowhere else."""
        for name in names:
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [cls(log)], False
