"""How far a batch is, on stderr."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from llmc.serve.batch.answers import is_failed


class BatchProgress:
    """A bar on a terminal, elsewhere nothing; counts lines that tell of an error."""

    def __init__(self, console: Console, total: int, done: int, num_failed: int) -> None:
        self.num_failed = num_failed
        columns = (BarColumn(32), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(
            *columns, TimeRemainingColumn(), console=console, refresh_per_second=2, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("lines", total=total, completed=done)

    def answered(self, output: bytes) -> None:
        if is_failed(output):
            self.num_failed += 1
            self._bar.update(self._task, description=f"lines, {self.num_failed} of them errors")
        self._bar.advance(self._task)

    def __enter__(self) -> "BatchProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
