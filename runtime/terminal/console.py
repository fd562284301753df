"""A terminal's dangers: Ctrl-C at the wrong moment, text that controls it, and silence while something takes long."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, TextIO

WAITED_SECONDS = 2.0  # that nobody minds
_KEPT_CONTROLS = "\n\t"


class Interrupts:
    """While entered, Ctrl-C only sets `seen`, so that no step is torn in the middle.

    A second one interrupts.
    """

    def __init__(self) -> None:
        self.seen = False
        self._previous: object = None
        self._installed = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


class Waiting:
    """While entered, and until `over`, a terminal shows what is waited for, once that has taken WAITED_SECONDS.

    Nothing of it stays on the screen. A stream that is no terminal gets nothing.
    """

    def __init__(self, text: str, stream: TextIO) -> None:
        self._text = text
        self._stream = stream
        self._lock = threading.Lock()
        self._over = not stream.isatty()
        self._shown: Any = None
        self._timer = threading.Timer(WAITED_SECONDS, self._show)
        self._timer.daemon = True

    def __enter__(self) -> "Waiting":
        if not self._over:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()

    def over(self) -> None:
        """The terminal is the caller's again. Doing it again changes nothing."""
        with self._lock:
            self._over = True
            self._timer.cancel()
            if self._shown is not None:
                self._shown.stop()
                self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn())
        with self._lock:
            if not self._over:
                self._shown = Progress(*columns, console=Console(file=self._stream), transient=True)
                self._shown.add_task(self._text, total=None)
                self._shown.start()


def printable(text: str, out: TextIO) -> str:
    """`text` as it may be written to `out`: for a terminal without control characters, else as it is.

    Characters that the stream's encoding lacks become `?`.
    """
    if out.isatty():
        text = "".join(c for c in text if c in _KEPT_CONTROLS or not (ord(c) < 32 or 127 <= ord(c) < 160))
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
