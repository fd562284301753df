"""A terminal's two dangers: Ctrl-C at the wrong moment, and text that controls the terminal."""

import signal
import threading
from types import FrameType, TracebackType
from typing import TextIO

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


def printable(text: str, out: TextIO) -> str:
    """`text` as it may be written to `out`: for a terminal without control characters, else as it is.

    Characters that the stream's encoding lacks become `?`.
    """
    if out.isatty():
        text = "".join(c for c in text if c in _KEPT_CONTROLS or not (ord(c) < 32 or 127 <= ord(c) < 160))
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
