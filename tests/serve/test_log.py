"""The log: lines that hold no control characters, and a reader who does not read."""

from __future__ import annotations

import json
import os
import threading

from llmc.serve.log import EventLog, Lines


def test_a_reader_who_does_not_read_holds_up_nobody() -> None:
    reading, writing = os.pipe()
    out = os.fdopen(writing, "w")
    lines = Lines(out, most=100)
    for number in range(5000):
        lines.put(f"{number} " + "x" * 1000)  # 5 MB: no pipe holds that
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.extend(os.fdopen(reading)))
    reader.start()
    lines.close(20)
    out.close()
    reader.join(20)
    assert received[0].startswith("0 ") and 100 < len(received) < 5000
    assert received[-1].endswith("lines of the log were lost: nobody read it\n")
    assert int(received[-1].split()[1]) == 5000 - (len(received) - 1)


def test_a_reader_who_has_gone_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        lines = Lines(out)
        lines.put("nobody hears this")
        lines.close(20)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # what is left in the buffer goes there


def test_events_are_one_line_each() -> None:
    written: list[str] = []
    for as_json in (True, False):
        EventLog(as_json, written.append).event("request", path="/a\nb\x1b[31m\u2028", seconds=0.12345678, none=None)
    assert len(written) == 2 and all(line.isprintable() for line in written)
    assert json.loads(written[0])["path"] == "/a?b?[31m?" and json.loads(written[0])["seconds"] == 0.123457
