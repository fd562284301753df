"""A submitted prompt in the hands of its caller, in an asyncio program."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.loop.samples import Choice
from llmc.runtime.process.answers import Answers


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
            if self._choice is not None:  # in a thread of its own: a scorer of the caller's may take its time
                completions = await asyncio.to_thread(self._choice.best, completions)
            self._results = completions
        return self._results
