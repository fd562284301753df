"""`llmc serve`: load the engines, listen, and leave in good order.

The address is taken first, so that a port that another server has is said at once; then the engines' process is
started, and what serves is imported while it loads.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.process.engine_process import EngineProcess
from llmc.runtime.process.protocol import ServedEngine, ServedProcess, State
from llmc.serve.http.keys import read_keys
from llmc.serve.http.sockets import identity_of, open_socket, open_unix_socket, remove_unix_socket, url
from llmc.serve.options import ServeOptions

if TYPE_CHECKING:
    from llmc.serve.service import Service

T = TypeVar("T")
EXIT_DEAD = 1
_LEAVE_SECONDS = 2.0  # for streams to tell their clients that it is over


def serve(options: ServeOptions) -> int:
    """Until a signal comes or the engines die; the exit code. Raises RuntimeFailure, OSError, ValueError."""
    import uvloop

    began = time.perf_counter()
    named, keys = options.named(), read_keys(options.keys, options.key_file)
    listening = open_unix_socket(options.uds) if options.uds else open_socket(options.host, options.port)
    identity = identity_of(options.uds) if options.uds else None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options, named, keys, listening, began))
    finally:
        listening.close()
        if options.uds and identity is not None:
            remove_unix_socket(options.uds, identity)


async def _serve(
    options: ServeOptions, named: Mapping[str, Path], keys: list[str], listening: socket.socket, began: float
) -> int:
    signals = Signals()
    signals.listen()
    load = EngineProcess.start(named, options.load, device=options.device, restart=options.restart)
    return await serve_process(load, options, keys, listening, signals, began)


async def serve_process(
    load: Coroutine[Any, Any, ServedProcess],
    options: ServeOptions,
    keys: list[str],
    listening: socket.socket,
    signals: "Signals",
    began: float,
) -> int:
    """Serve the process of engines that `load` gives; the exit code. Raises what `load` raises."""
    starting = asyncio.create_task(load)
    service = (await asyncio.to_thread(_import_service))(options, keys, listening)
    try:
        process = await _unless(signals.first, starting)
        if process is None:
            return 0
        try:
            await _warm_up(process.engines)
            service.begin(process)
            facts = {"url": url(listening), "models": ",".join(process.engines)}
            service.log.event("ready", **facts, seconds=time.perf_counter() - began)
            return await _until_the_end(service, process, signals, options.restart)
        finally:
            await process.close()
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, RuntimeFailure):
            await starting
        await service.close()


def _import_service() -> "type[Service]":
    from llmc.serve.service import Service

    return Service


async def _warm_up(engines: Mapping[str, ServedEngine]) -> None:
    """One good answer of each engine. Raises what goes wrong."""
    for engine in engines.values():
        ids = engine.encode("Hi") if engine.tokenizer is not None else [0]
        stream = await engine.submit(ids or [0], engine.sampling(temperature=0.0, max_tokens=2, min_tokens=0))
        (completion,) = await stream.result()
        if completion.error is not None:
            raise completion.error


async def _until_the_end(service: "Service", process: ServedProcess, signals: "Signals", restart: bool) -> int:
    if restart:
        await signals.first.wait()
    else:
        died = await _unless(signals.first, asyncio.create_task(process.died.wait()))
        if died:
            service.log.event("dead", cause=process.cause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.idle(), _LEAVE_SECONDS)
            return EXIT_DEAD
    await service.drain(signals.second, _LEAVE_SECONDS)
    if process.state is State.DEAD:  # what was under way did not end well
        service.log.event("dead", cause=process.cause)
        return EXIT_DEAD
    return 0


async def _unless(event: asyncio.Event, work: asyncio.Task[T]) -> T | None:
    """What `work` gives, or None if the event comes first."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, work}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        return work.result()
    work.cancel()
    return None


class Signals:
    """The first SIGTERM or Ctrl-C asks to leave, the second to hurry, the third gets what it wants."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def listen(self) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, self.came)

    def came(self) -> None:
        if self.second.is_set():
            os._exit(EXIT_DEAD)
        (self.second if self.first.is_set() else self.first).set()
