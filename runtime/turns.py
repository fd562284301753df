"""One thread at a time in an engine: what would tear a step is refused, with the reason."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from llmc.runtime.errors import RequestError


class Turns:
    """Whose turn it is. Not a queue: nobody waits, since callers of an engine take turns themselves."""

    def __init__(self) -> None:
        self._taken = threading.Lock()
        self._thread: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For as long as the device works. Raises RequestError where it already does."""
        if not self._taken.acquire(blocking=False):
            self.keep_out_others()
            raise RequestError("the engine cannot be driven from inside an output callback")
        try:
            self._thread = threading.get_ident()
            yield
        finally:
            self._thread = None
            self._taken.release()

    def keep_out_others(self) -> None:
        """For what an output callback may do, and no other thread: RequestError for that one."""
        if self._taken.locked() and self._thread != threading.get_ident():
            raise RequestError(
                "another thread drives this engine at the moment: an engine is for one thread at a time; hold a lock "
                "around its calls, or load an engine for each thread"
            )
