"""A submitted prompt in the hands of its caller, in an asyncio program."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from llmc.runtime.errors import RequestError
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.process.answers import Answers, best_of, cumulative
from llmc.runtime.process.protocol import Scorer


@dataclass(frozen=True)
class Choice:
    """Which of the samples are given back: the `count` best ones by `scorer`, or by log-probability."""

    count: int
    scorer: Scorer | None
    logprobs: bool  # whether the caller has asked for them


class Stream:
    """Iterate it for outputs as they come, or await `result`, or both in this order.

    `choice`: outputs come only at the end, of the samples that are chosen then.
    """

    def __init__(self, request_id: str, answers: Answers, choice: Choice | None) -> None:
        self.request_id = request_id
        self._answers = answers
        self._choice = choice
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Output] = deque()
        self._results: list[Completion] | None = None
        answers.changed = self._news.set
        answers.collected = choice is not None

    def __del__(self) -> None:
        if not self._answers.done and not self._loop.is_closed():
            # The collector may run in any thread.
            self._loop.call_soon_threadsafe(self._answers.end, FinishReason.CANCELLED)

    @property
    def prompt_len(self) -> int:
        return self._answers.prompt_len

    @property
    def num_cached(self) -> int:
        return self._answers.num_cached

    def cancel(self) -> None:
        self._answers.end(FinishReason.CANCELLED)

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._choice is not None and self._results is None:
            for index, one in enumerate(await self.result()):
                reason, error = one.finish_reason, one.error
                self._ready.append(Output(one.text, one.token_ids, one.logprobs, reason, error, index, one.marks))
        while not self._ready:
            if self._choice is not None:
                raise StopAsyncIteration
            self._news.clear()
            self._ready.extend(self._answers.take())
            if not self._ready:
                if self._answers.done:
                    raise StopAsyncIteration
                await self._news.wait()
        return self._ready.popleft()

    async def result(self) -> list[Completion]:
        self._answers.collected = True
        while not self._answers.done:
            self._news.clear()
            await self._news.wait()
        if self._results is None:
            completions = [sample.completion for sample in self._answers.samples if sample.completion is not None]
            self._results = completions if self._choice is None else await _chosen(completions, self._choice)
        return self._results


async def _chosen(samples: list[Completion], choice: Choice) -> list[Completion]:
    """By a scorer of the caller's in a thread of its own, since it may take its time. Raises RequestError."""
    scorer = choice.scorer
    if scorer is None:
        values = [cumulative(sample) for sample in samples]
    else:
        try:
            values = await asyncio.to_thread(lambda: [float(scorer(sample)) for sample in samples])
        except Exception as error:
            raise RequestError(f"the scorer raised {type(error).__name__}: {error}") from error
    return best_of(samples, choice.count, values, choice.logprobs)
