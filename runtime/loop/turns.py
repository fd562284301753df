"""One call at a time in an engine: what would tear another in its middle is refused, with the reason."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llmc.runtime.errors import RequestError

_NOW = "now"


@dataclass(eq=False)
class _Turn:
    thread: int
    calling_back: bool = False  # an output callback runs: between two rows, when nothing is half done


class Turns:
    """Whose turn it is. Not a queue: nobody waits, since callers of an engine take turns themselves."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}  # at most one; `setdefault` takes it, as an atomic operation

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For one call that works on the engine's queues, blocks or device. Raises RequestError during another."""
        mine = _Turn(threading.get_ident())
        try:
            now = self._turns.setdefault(_NOW, mine)
            if now is not mine:
                raise RequestError(_refusal(now))
            yield
        finally:  # nothing is called here, so no interrupt comes before the turn has ended
            if _NOW in self._turns and self._turns[_NOW] is mine:
                del self._turns[_NOW]

    @property
    def in_callback(self) -> bool:
        """Whether this is code of an output callback, which may do what another thread may not."""
        now = self._turns.get(_NOW)
        return now is not None and now.thread == threading.get_ident() and now.calling_back

    def call_back(self, callback: Callable[[], None]) -> None:
        """Call a caller's code in the middle of a turn."""
        now = self._turns[_NOW]
        before, now.calling_back = now.calling_back, True
        try:
            callback()
        finally:
            now.calling_back = before


def _refusal(now: _Turn) -> str:
    if now.thread != threading.get_ident():
        return (
            "another thread drives this engine at the moment: an engine is for one thread at a time; hold a lock "
            "around its calls, or load an engine for each thread"
        )
    if now.calling_back:
        return "the engine cannot be driven from inside an output callback"
    return (
        "the engine is in the middle of another call: a signal handler may only leave a note for the code that "
        "drives the engine"
    )
