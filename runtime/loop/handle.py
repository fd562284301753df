"""A submitted request in the hands of its caller."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmc.runtime.loop.request import Request
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.answer import Answer


@dataclass(eq=False)
class Live:
    """Everything about a request that is not finished.

    `outputs` waits for the handle's iterator to take it.
    """

    request: Request
    answer: Answer
    params: SamplingParams
    seed: int
    on_output: Callable[[Output], None] | None
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    outputs: deque[Output] = field(default_factory=deque)
    completion: Completion | None = None


class RequestHandle:
    """Iterating drives the engine and yields this request's outputs; other requests advance meanwhile."""

    def __init__(self, live: Live, step: Callable[[], bool], cancel: Callable[[], None]) -> None:
        self._live = live
        self._step = step
        self._cancel = cancel

    def __iter__(self) -> Iterator[Output]:
        while True:
            while self._live.outputs:
                yield self._live.outputs.popleft()
            if self._live.completion is not None:
                return
            self._step()

    @property
    def completion(self) -> Completion | None:
        """The whole answer once it is finished."""
        return self._live.completion

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that were in the prefix cache, known once it has its first token."""
        return self._live.request.num_cached

    def result(self) -> Completion:
        """Drive the engine until this request is finished."""
        while self._live.completion is None:
            self._step()
        return self._live.completion

    def cancel(self) -> None:
        """End the request now; its blocks are free when this returns. A finished request stays as it is."""
        self._cancel()
