"""One line an event: JSON, or for people. Never a prompt, an answer or a key; never a control character."""

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_VALUE = 400


class EventLog:
    """Events as lines, for `write`."""

    def __init__(self, as_json: bool, write: Callable[[str], None]) -> None:
        self._as_json = as_json
        self._write = write

    def event(self, what: str, **facts: Any) -> None:
        clean = {name: _clean(value) for name, value in facts.items() if value is not None}
        if self._as_json:
            now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
            self._write(orjson.dumps({"time": now, "event": what, **clean}).decode())
        else:
            self._write(" ".join([what, *(f"{name}={value}" for name, value in clean.items())]))


class Lines:
    """Written to a file by a thread of its own: a reader who is slow, or has gone, does not hold up the server.

    Of what he does not take, `most` lines are kept. The others are lost; how many, he is told.
    """

    def __init__(self, out: TextIO, most: int = 10_000) -> None:
        self._out = out
        self._most = most
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._num_lost = 0
        self._writer = threading.Thread(target=self._write_all, name="llmc-log", daemon=True)
        self._writer.start()

    def put(self, line: str) -> None:
        if self._lines.qsize() < self._most:
            self._lines.put(line)
        else:
            self._num_lost += 1

    def close(self, seconds: float = 1.0) -> None:
        """Write what is left, if that does not take longer."""
        self._lines.put(None)
        self._writer.join(seconds)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if self._lines.empty():
                self._tell_lost()
        self._tell_lost()

    def _tell_lost(self) -> None:
        if self._num_lost:
            lost, self._num_lost = self._num_lost, 0
            self._write(f"llmc: {lost} lines of the log were lost: nobody read it")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self._out, flush=True)


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
