"""How long what may take before it counts as stuck, or as left alone."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from llmc.runtime.process.facts import EngineFacts

TICK = 0.25  # seconds between two looks
_LEAST, _MARGIN = 60.0, 8.0  # seconds; beyond what the longest step takes token by token, for long contexts

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 30.0  # seconds between a death and the next start
_SOUND = 60.0  # seconds of service after which a death is no sign of another


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
    """Pauses before restarts: short after a process that served for a while, ever longer otherwise."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._started = time.monotonic()

    def started(self) -> None:
        self._started = time.monotonic()

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        if time.monotonic() - self._started > _SOUND:
            self._pause = _FIRST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause
