"""Answers the lines of a batch that its journal does not have, many at a time."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO

from llmc.runtime.process.protocol import ServedProcess
from llmc.serve.batch.answers import Identity, answer_line, problem_line, request_body
from llmc.serve.batch.asking import ask
from llmc.serve.batch.journal import Journal
from llmc.serve.batch.lines import BatchInput, Line
from llmc.serve.http.app import App
from llmc.serve.http.cors import Cors
from llmc.serve.http.keys import ApiKeys
from llmc.serve.log import EventLog
from llmc.serve.routes.table import ROUTES
from llmc.serve.server import Server

_SYNC_SECONDS = 0.5  # what a machine that loses power may have to answer again


class _Faults(EventLog):
    """Of the server's log, what is no line of the output."""

    def event(self, what: str, **facts: Any) -> None:
        if what == "fault":
            super().event(what, **facts)


async def answer_lines(
    process: ServedProcess, lines: BatchInput, journal: Journal, answered: Callable[[bytes], None]
) -> None:
    """`answered` hears of every line's output. Raises BatchStopped, OSError."""
    (engine,) = process.engines.values()
    server = Server(ApiKeys([]), Cors(()), _Faults(False, lambda line: print(line, file=sys.stderr)))
    server.begin(process)
    app = App(server, ROUTES)
    left = iter([line for line in lines.lines if line.number not in journal])
    with lines.path.open("rb") as source, contextlib.ExitStack() as stack:
        stack.callback(journal.sync)
        work = _Work(app, engine.facts.digest, lines, source, journal, answered)
        async with _synced(journal):
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(2 * engine.facts.max_batch):  # so that there is always one to take a place
                        group.create_task(work.through(left))
            except* Exception as errors:
                raise errors.exceptions[0] from None


class _Work:
    def __init__(
        self,
        app: App,
        engine_digest: str,
        lines: BatchInput,
        source: BinaryIO,
        journal: Journal,
        answered: Callable[[bytes], None],
    ) -> None:
        self._app = app
        self._engine_digest = engine_digest
        self._lines = lines
        self._source = source
        self._journal = journal
        self._answered = answered

    async def through(self, lines: Iterator[Line]) -> None:
        """One after the other, of those that nobody else has taken."""
        for line in lines:
            output = await self._answer(line)
            self._journal.append(line.number, output)
            self._answered(output)

    async def _answer(self, line: Line) -> bytes:
        identity = Identity(self._engine_digest, line)
        if line.problem is not None:
            return problem_line(line, identity)
        body = request_body(line, self._lines.body(self._source, line))
        response = await ask(self._app, line.url, body)
        return answer_line(line, identity, response.status, response.body, response.request_id)


@asynccontextmanager
async def _synced(journal: Journal) -> AsyncIterator[None]:
    async def now_and_then() -> None:
        while True:
            await asyncio.sleep(_SYNC_SECONDS)
            await asyncio.to_thread(journal.sync)

    syncing = asyncio.create_task(now_and_then())
    try:
        yield
    finally:
        syncing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await syncing
