"""What the emulator compiles before a command can run, for as long as it takes: minutes, the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

FIRST_LINE_SECONDS = 2.0
LINE_SECONDS = 10.0

Tell = Callable[[int, int], None]
"""Told how many of how many things are done."""


@contextmanager
def shown(text: str, stream: TextIO) -> Iterator[Tell]:
    """A bar on a terminal, gone at the end; elsewhere a line now and then. What is over soon leaves no trace."""
    with (_bar if stream.isatty() else _lines)(text, stream) as tell:
        yield tell


@contextmanager
def _bar(text: str, stream: TextIO) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bars:
        task = bars.add_task(text, total=None)  # it moves until the first thing is done
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _lines(text: str, stream: TextIO) -> Iterator[Tell]:
    over = threading.Event()
    state = ""

    def tell(done: int, total: int) -> None:
        nonlocal state
        state = f": {done} of {total}"

    def write() -> None:
        wait = FIRST_LINE_SECONDS
        while not over.wait(wait):
            print(f"{text}{state}", file=stream, flush=True)
            wait = LINE_SECONDS

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join()
