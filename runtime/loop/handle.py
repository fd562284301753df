"""A submitted request in the hands of its caller."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmc.runtime.errors import RequestError
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.loop.samples import Choice
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


class SamplesHandle:
    """Several answers to one prompt. Iterating yields the outputs of all as they come, with their samples' numbers."""

    def __init__(self, handles: Sequence[RequestHandle], choice: Choice | None) -> None:
        self._handles = handles
        self._choice = choice

    def __iter__(self) -> Iterator[Output]:
        left = dict(enumerate(map(iter, self._handles)))
        while left:
            for sample, outputs in list(left.items()):
                output = next(outputs, None)
                if output is None:
                    del left[sample]
                else:
                    yield replace(output, sample=sample)

    def result(self) -> list[Completion]:
        """Drive the engine until all are finished. By sample; where they are chosen, the chosen ones, best first.

        Raises RequestError if the scorer fails.
        """
        samples = [handle.result() for handle in self._handles]
        return samples if self._choice is None else self._choice.best(samples)

    def results(self) -> list[Completion]:
        """As `result`; where the scorer fails, the completions say so."""
        try:
            return self.result()
        except RequestError as error:
            assert self._choice is not None
            failed = [handle.result() for handle in self._handles[: self._choice.count]]
            return [replace(one, finish_reason=FinishReason.ERROR, error=error) for one in failed]

    def cancel(self) -> None:
        """End all of them now."""
        for handle in self._handles:
            handle.cancel()
