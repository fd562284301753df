"""How long what may take before it counts as stuck, or as left alone."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from llmc.runtime.process.facts import EngineFacts

TICK = 0.25  # seconds between two looks
_LEAST, _MARGIN = 60.0, 8.0  # seconds; beyond what the longest step takes token by token, for long contexts
_SOUND = 1.0  # seconds of service after which a death is no sign of another
_PAUSE, _LONG_PAUSE, _LONGEST_PAUSE = 0.05, 0.5, 30.0  # seconds between a death and the next start


@dataclass(frozen=True)
class Watching:
    """`step_limit`: seconds of a step after which the process counts as stuck; None: by what a step of one token took
    when the engines were loaded, at least a minute. `stall_limit`: seconds that a reader may leave something unread."""

    step_limit: float | None = None
    stall_limit: float = 60.0

    def limit(self, facts: Iterable[EngineFacts]) -> float:
        """A step of many tokens takes no longer than so many of one, but for the attention over a long context."""
        if self.step_limit is not None:
            return self.step_limit
        return max(_LEAST, *(_MARGIN * one.max_tokens * one.token_seconds for one in facts))


class Backoff:
    """Pauses before restarts: short after a process that served, longer after one that died at once, and ever longer
    while none can be loaded."""

    def __init__(self) -> None:
        self._ready = time.monotonic()
        self._pause = _PAUSE

    def ready(self) -> None:
        self._ready = time.monotonic()

    def died(self) -> None:
        self._pause = _PAUSE if time.monotonic() - self._ready >= _SOUND else _LONG_PAUSE

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        pause, self._pause = self._pause, min(max(_LONG_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        return pause
