"""A submitted prompt in the hands of its caller, in an asyncio program."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.loop.samples import Choice
from llmc.runtime.process.answers import Answers

Take = Callable[[Output], bool]


class _Inbox:
    """What has come and was not read. It does not hold the stream, which ends when nobody does."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._news = asyncio.Event()
        self._has_all = False  # the reader waits for more
        self._failure: Exception | None = None  # of `take`
        self.take: Take | None = None
        self.ready: deque[Output] = deque()
        answers.changed = self._changed

    async def more(self) -> None:
        """Until there is something in `ready`, or nothing more will come. Raises what `take` has raised."""
        while not self.ready:
            self._news.clear()
            self.ready.extend(self._answers.take())
            if self.ready or self._answers.done:
                return
            self._has_all = True
            try:
                await self._news.wait()
            finally:
                self._has_all = False
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    async def end(self) -> None:
        """Until all answers have ended."""
        while not self._answers.done:
            self._news.clear()
            await self._news.wait()

    def _changed(self) -> None:
        if self.take is not None and self._has_all:
            for output in self._answers.take():
                if not (self._has_all and output.finish_reason is None and self._takes(output)):
                    self._has_all = False
                    self.ready.append(output)
        if self.take is None or not self._has_all:
            self._news.set()

    def _takes(self, output: Output) -> bool:
        assert self.take is not None
        try:
            return self.take(output)
        except Exception as error:
            self._failure = error
            return False


class Stream:
    """Iterate it for outputs as they come, or await `result`, or both in this order.

    `choice`: outputs come only at the end, of the samples that are chosen then.
    """

    def __init__(self, request_id: str, answers: Answers, choice: Choice | None) -> None:
        self.request_id = request_id
        self._answers = answers
        self._choice = choice
        self._inbox = _Inbox(answers)
        self._loop = asyncio.get_running_loop()
        self._results: list[Completion] | None = None
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

    def divert(self, take: Take | None) -> None:
        self._inbox.take = take

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        ready = self._inbox.ready
        if self._choice is None:
            await self._inbox.more()
        elif self._results is None:
            for index, one in enumerate(await self.result()):
                reason, error = one.finish_reason, one.error
                ready.append(Output(one.text, one.token_ids, one.logprobs, reason, error, index, one.marks))
        if not ready:
            raise StopAsyncIteration
        return ready.popleft()

    async def result(self) -> list[Completion]:
        self._answers.collected = True
        await self._inbox.end()
        if self._results is None:
            completions = [sample.completion for sample in self._answers.samples if sample.completion is not None]
            if self._choice is not None:  # in a thread of its own: a scorer of the caller's may take its time
                completions = await asyncio.to_thread(self._choice.best, completions)
            self._results = completions
        return self._results
