"""Progress for people: bars that move on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from llmc.compiler.progress import BYTES, Progress
from llmc.compiler.roofline.text import size

LINE_SECONDS = 10.0  # between two lines that say how far one stage is


@contextmanager
def shown(console: Console) -> Iterator[Progress]:
    """Progress on a console while the block runs; the last stage ends with it."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), _Amount(), TimeElapsedColumn())
    with RichProgress(*columns, console=console) as bars:
        progress = _Bars(bars)
        yield progress
        progress.end()


def amount_text(done: float, total: float, unit: str) -> str:
    """`0.5 GB of 1.2 GB`, `3 of 40 kernels`."""
    if unit == BYTES:
        return f"{size(int(done))} of {size(int(total))}"
    return f"{int(done)} of {int(total)} {unit}"


class _Amount(ProgressColumn):
    """How far a stage is, where it says so."""

    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit")
        return Text("" if unit is None or task.total is None else amount_text(task.completed, task.total, unit))


class _Bars(Progress):
    """Each stage is a bar: of what is done where the stage says it, else one that only moves."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars

    def stage(self, text: str) -> None:
        self.end()
        self._bars.add_task(text, total=None)

    def amount(self, done: int, total: int, unit: str) -> None:
        self._bars.update(self._bars.tasks[-1].id, completed=done, total=total, unit=unit)

    def end(self) -> None:
        """The present stage is at its end."""
        if self._bars.tasks:
            task = self._bars.tasks[-1]
            total = 1 if task.total is None else task.total
            self._bars.update(task.id, total=total, completed=total)


class _Lines(Progress):
    """Each stage is a line when it begins; one that takes long and says how far it is has more of them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._last = 0.0

    def stage(self, text: str) -> None:
        self._stage = text
        self._print(text)

    def amount(self, done: int, total: int, unit: str) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS and done < total:
            self._print(f"{self._stage}: {amount_text(done, total, unit)}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
        self._last = time.monotonic()
