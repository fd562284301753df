"""Parts of the report as processes: asked, listened to, stopped in time, started again behind what killed them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.records import Item

PROGRAM = Path(__file__).with_name("part.py")
GRACE = 20.0  # seconds beyond its time that a part may take to end what it has begun
START = 60.0  # seconds that a process has to say its plan: imports, and a GPU that nobody has kept awake
TAIL = 1500  # characters of a dead part's last words


@dataclass(frozen=True)
class Part:
    """`name`: in the report. `does`: the function of part.py. `deaths`: how many of its processes may die before it is
    given up; each new one goes on behind the item that killed the one before. `patience`: seconds without a word after
    which a process is taken for hung, which kernels that wait for each other are; before its first word, START if that
    is more."""

    name: str
    does: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deaths: int = 1
    patience: float = 60.0


@dataclass
class Outcome:
    """`items` by key; `errors` of items that killed a process, by key; `left_out`: planned, and not begun."""

    items: dict[str, Item] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    error: str = ""  # of the part as a whole: what could not even begin
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not (self.left_out or self.error)

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "complete": self.complete}


class Run:
    """One run of a part, on `outcome`. `on_item` is told each item's key and content as it comes, and may add to it."""

    def __init__(
        self, part: Part, until: float, env: Mapping[str, str], on_item: Callable[[str, Item], None] = lambda k, i: None
    ) -> None:
        self.part, self.until = part, until
        self.outcome = Outcome()
        self._env, self._on_item = env, on_item

    def run(self) -> Outcome:
        """From beginning to end; nothing is begun after `until`."""
        start, plan = time.monotonic(), list[str]()
        for _ in range(self.part.deaths):
            killed_by, last_words = self._process(plan)
            if last_words is None:
                break
            if killed_by is None:  # outside of any item: it would happen again
                self.outcome.error = last_words
                break
            self.outcome.errors[killed_by] = last_words
            if time.monotonic() > self.until:
                break
        self.outcome.left_out = [k for k in plan if k not in self.outcome.items and k not in self.outcome.errors]
        self.outcome.seconds = round(time.monotonic() - start, 2)
        return self.outcome

    def _process(self, plan: list[str]) -> tuple[str | None, str | None]:
        """(the item it was at, its last words), both None where it ended well."""
        reader, writer = os.pipe()
        asked = {
            "part": self.part.does,
            "options": dict(self.part.options) | {"asked_at": time.monotonic()},
            "skip": [*self.outcome.items, *self.outcome.errors],
            "until": self.until,
            "descriptor": writer,
        }
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                pass_fds=[writer],
                env=dict(self._env),
                text=True,
            )
            os.close(writer)
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it died at once: its last words say of what
                    process.stdin.write(json.dumps(asked))
                    process.stdin.close()
                begun, stopped = self._listen(reader, plan)
            finally:
                os.close(reader)
                process.kill()  # it has ended, unless its time has
                code = _end_of(process)
            said.seek(0)
            words = said.read()[-TAIL:].strip()
        if not stopped and code == 0:
            return None, None
        ended = stopped or f"exit status {code}"
        if code is None:
            ended += ", and it does not end"
        return begun, f"{ended}: {words}" if words else ended

    def _listen(self, reader: int, plan: list[str]) -> tuple[str | None, str]:
        """Takes its records until it ends or its time does: the item that it had begun then, and why it is stopped."""
        begun: str | None = None
        rest = b""
        last, heard = time.monotonic(), False
        while True:
            patience_s = self.part.patience if heard else max(START, self.part.patience)
            end, patience = self.until + GRACE, last + patience_s
            ready, _, _ = select.select([reader], [], [], max(0.0, min(end, patience) - time.monotonic()))
            if not ready:
                why = "stopped at the end of its time" if end < patience else "stopped: nothing heard for"
                return begun, why if end < patience else f"{why} {patience_s:.0f} s"
            data = os.read(reader, 1 << 16)
            if not data:
                return begun, ""
            last, heard = time.monotonic(), True
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                begun = self._take(json.loads(line), plan, begun)

    def _take(self, record: dict[str, Any], plan: list[str], begun: str | None) -> str | None:
        """One record; the item under way afterwards."""
        if "plan" in record:
            plan[:] = record["plan"]
            return begun
        if "begin" in record:
            return str(record["begin"])
        self.outcome.items[record["end"]] = record["item"]
        self._on_item(record["end"], record["item"])
        return None


def _end_of(process: subprocess.Popen[str]) -> int | None:
    """Its exit status; None where even a kill does not end it, as when a driver cannot stop its kernel."""
    try:
        return process.wait(GRACE)
    except subprocess.TimeoutExpired:
        return None


class Background:
    """A part that runs beside others."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._thread = threading.Thread(target=run.run, name=run.part.name)
        self._thread.start()

    def result(self) -> Outcome:
        """Waits for its end."""
        self._thread.join()
        return self._run.outcome
