"""One prompt's answers under way: queued, read, counted, and let go however the handler ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output, TokenLogprobs
from llmc.runtime.process.fault_points import FAULT_POINTS
from llmc.runtime.process.protocol import AnswerStream
from llmc.runtime.step.params import SamplingParams
from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.answer import REFUSALS, Usage, finish_reason
from llmc.serve.protocol.errors import from_failure
from llmc.serve.protocol.generation import PARAMETERS, Generation
from llmc.serve.server import Model, Server


class Answering:
    """`async with await Answering.begin(...)`; then `write` or `outputs`, and `finish`."""

    def __init__(self, server: Server, model: Model, stream: AnswerStream) -> None:
        self._server = server
        self._model = model
        self._stream = stream
        self._completions: list[Completion] | None = None
        self._last: dict[int, float] = {}  # when there was something of each sample

    @classmethod
    async def begin(
        cls,
        server: Server,
        exchange: Exchange,
        model: Model,
        ids: Sequence[int],
        generation: Generation,
        params: SamplingParams,
    ) -> "Answering":
        """Queue a prompt; a client that goes away cancels it. Raises ApiError."""
        if (refusal := server.not_ready) is not None:
            raise refusal  # it was taken when it came, but has been read and tokenised since
        try:
            stream = await model.engine.submit(
                ids,
                params,
                n=generation.n,
                best_of=generation.best_of,
                latency=generation.latency,
                priority=generation.priority,
                salt=generation.salt,
                request_id=exchange.id,
            )
        except RuntimeFailure as error:
            raise from_failure(error, PARAMETERS) from error
        server.running.add(stream)
        model.metrics.begin(len(ids), generation.n)
        exchange.facts.update(model=model.name, prompt_tokens=exchange.facts.get("prompt_tokens", 0) + len(ids))
        exchange.watch(stream.cancel)
        return cls(server, model, stream)

    async def __aenter__(self) -> "Answering":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.cancel()
        self._server.running.discard(self._stream)
        how = _outcome(self._completions)
        self._model.metrics.end(how, self._completions or () if how == "finished" else ())

    async def write(self, exchange: Exchange, frame: Callable[[Output], bytes]) -> None:
        """As a stream: what `frame` makes of each output, if it is anything. Raises ApiError if the engine goes away.

        Most are written where they come from, and this task is not woken.
        """

        def put(output: Output) -> bool:
            if not exchange.flows:
                return False
            self._note(output)
            if data := frame(output):
                exchange.put(data)
            return True

        self._stream.divert(put)
        try:
            async for output in self.outputs():
                if data := frame(output):
                    await exchange.frame(data)
        finally:
            self._stream.divert(None)

    async def outputs(self) -> AsyncIterator[Output]:
        """As they come. Raises ApiError if the engine goes away."""
        try:
            async for output in self._stream:
                self._note(output)
                if output.finish_reason is FinishReason.ERROR or output.finish_reason is FinishReason.CANCELLED:
                    self._completions = await self._stream.result()
                yield output
        except RuntimeFailure as error:
            raise from_failure(error) from error

    def _note(self, output: Output) -> None:
        FAULT_POINTS.reach("stream")
        now = time.perf_counter()
        before = self._last.get(output.sample)
        if before is not None:
            self._model.metrics.gap(now - before)
        self._last[output.sample] = now

    async def finish(self, exchange: Exchange) -> tuple[list[Completion], Usage]:
        """All of it. Raises ApiError if the engine goes away."""
        try:
            self._completions = await self._stream.result()
        except RuntimeFailure as error:
            raise from_failure(error) from error
        usage = Usage.of(self._completions, self._stream.num_cached)
        exchange.facts["output_tokens"] = exchange.facts.get("output_tokens", 0) + usage.num_output
        return self._completions, usage


async def scored(server: Server, exchange: Exchange, model: Model, ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Log-probabilities of a prompt. Who goes away, and a server that has to hurry, end it. Raises ApiError."""
    scoring = asyncio.create_task(model.score(ids, top))
    server.running.add(scoring)
    exchange.watch(scoring.cancel)
    try:
        await asyncio.wait({scoring})
        if scoring.cancelled():
            finish_reason(FinishReason.CANCELLED, None)
        return scoring.result()
    finally:
        scoring.cancel()
        server.running.discard(scoring)


def _outcome(completions: Sequence[Completion] | None) -> str:
    """Of a request in one word. Who left before the end was there has cancelled it."""
    if completions is None:
        return "cancelled"
    if any(isinstance(one.error, REFUSALS) for one in completions):
        return "refused"
    reasons = {one.finish_reason for one in completions}
    if FinishReason.ERROR in reasons:
        return "failed"
    return "cancelled" if FinishReason.CANCELLED in reasons else "finished"
