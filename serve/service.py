"""Everything that serves, put together: imported while the engines load."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Sequence

from llmc.runtime.process.protocol import ServedProcess
from llmc.serve.http.app import App
from llmc.serve.http.cors import Cors
from llmc.serve.http.keys import ApiKeys
from llmc.serve.http.listener import Listener
from llmc.serve.log import EventLog, LibraryLog, Lines
from llmc.serve.options import ServeOptions
from llmc.serve.routes.table import ROUTES
from llmc.serve.server import Server


class Service:
    """Listens at once, takes requests from `begin` on."""

    def __init__(self, options: ServeOptions, keys: Sequence[str], listening: socket.socket) -> None:
        self._lines = Lines(sys.stderr)
        self.log = EventLog(options.log_json, self._lines.put)
        LibraryLog.take(self.log, "uvicorn", "asyncio")
        self.server = Server(ApiKeys(keys), Cors(options.origins), self.log, not options.reasoning_in_content)
        if options.otel:
            from llmc.serve.telemetry import Spans

            self.server.spans = Spans.over_http()
        self._app = App(self.server, ROUTES)
        self._listener = Listener(self._app)
        self._serving = asyncio.create_task(self._listener.serve([listening]))

    def begin(self, process: ServedProcess) -> None:
        self.server.begin(process)
        for model in self.server.models.values():
            self.log.event("model", name=model.name, **(model.chat_facts or {}))

    async def idle(self) -> None:
        """Until no request is being answered."""
        while self._app.num_open:
            await asyncio.sleep(0.01)

    async def drain(self, hurry: asyncio.Event, seconds: float) -> None:
        """Take nothing new, let what is under way end; with `hurry` it is told to end, and has so many seconds."""
        self.server.stop_taking()
        began = time.perf_counter()
        self.log.event("draining", open=self._app.num_open)
        idle, hurried = asyncio.create_task(self.idle()), asyncio.create_task(hurry.wait())
        await asyncio.wait({idle, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            self.server.cut_off()
            await asyncio.wait({idle}, timeout=seconds)
        for task in (idle, hurried):
            task.cancel()
        self.log.event("drained", seconds=time.perf_counter() - began, cut_off=hurry.is_set())

    async def close(self) -> None:
        self._listener.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        await asyncio.to_thread(self._lines.close)
        if self.server.spans is not None:
            await asyncio.to_thread(self.server.spans.close)
