"""Who may queue: counted on the side that submits, so that a refusal waits for no step."""

import time

from llmc.runtime.errors import QueueFull
from llmc.runtime.step.scheduling import SchedulingOptions

_KEPT = 0.9  # of the mean time between two departures, when another one is known
_LEAST_WAIT, _MOST_WAIT = 1.0, 600.0  # seconds


class Admission:
    """As many samples as run at once, and beside them those that may wait: `max_queued`, of at most
    `max_queued_tokens` prompt tokens that have no first token yet."""

    def __init__(self, max_batch: int, options: SchedulingOptions) -> None:
        self._most_samples = max_batch + options.max_queued
        self._most_tokens = options.max_queued_tokens
        self.refused = 0
        self._samples = 0
        self._tokens = 0
        self._pace = 0.0  # seconds from one departure to the next
        self._left_at: float | None = None

    def enter(self, samples: int, tokens: int) -> None:
        """Samples of one prompt, of so many tokens together. Raises QueueFull."""
        excess = self._samples + samples - self._most_samples
        too_many = self._tokens + tokens - self._most_tokens
        if self._samples and (excess > 0 or too_many > 0):  # who comes alone waits for nobody
            self.refused += samples
            mean = max(1.0, self._tokens / self._samples)
            wait = min(_MOST_WAIT, max(_LEAST_WAIT, max(excess, too_many / mean) * self._pace))
            raise QueueFull(
                f"{self._samples} requests run and wait, with {self._tokens} prompt tokens; at most "
                f"{self._most_samples} and {self._most_tokens} do; try again in {wait:.0f} s",
                wait,
            )
        self._samples += samples
        self._tokens += tokens

    def begun(self, tokens: int) -> None:
        """The prompt was computed: it waits no more."""
        self._tokens -= tokens

    def leave(self, samples: int) -> None:
        self._samples -= samples
        now = time.monotonic()
        if self._left_at is not None:
            passed = (now - self._left_at) / samples
            self._pace = _KEPT * self._pace + (1 - _KEPT) * passed if self._pace else passed
        self._left_at = now if self._samples else None  # where nobody is left there is no pace
