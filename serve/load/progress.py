"""How far a bench is, on stderr. It is drawn twice a second at most: the machine has other things to do."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """A bar of what runs now on a terminal; a line for each run elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=console, refresh_per_second=2, transient=True)
        self._task = self._bars.add_task("", total=None, visible=False)

    def begin(self, what: str, total: int) -> None:
        if self._console.is_terminal:
            self._bars.reset(self._task, description=what, total=total, visible=True)
        else:
            self._console.print(f"{what}: {total} requests", soft_wrap=True)

    def advance(self) -> None:
        if self._console.is_terminal:
            self._bars.advance(self._task)

    def end(self) -> None:
        """Results follow: nothing moves any more."""
        if self._console.is_terminal:
            self._bars.stop()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
