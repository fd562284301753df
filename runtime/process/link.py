"""The serving side's end of the socket: frames go out, and what the child says goes to the engines it is about."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any, cast

from llmc.runtime.errors import EngineGone
from llmc.runtime.process.async_engine import AsyncEngine
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.frames import BrokenFrame, Frames, Message, frame
from llmc.runtime.process.stats import EngineStats
from llmc.runtime.process.wire import read_as, read_failure


class Link(asyncio.Protocol):
    """`lost` ends when nothing more can come: with what was wrong, or with nothing where the child just went."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._engines: Sequence[AsyncEngine] = ()
        self._ready: asyncio.Future[list[EngineFacts]] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self._wrong = ""
        self.pongs = 0

    @classmethod
    async def open(cls, link: socket.socket) -> "Link":
        _, protocol = await asyncio.get_running_loop().create_connection(cls, sock=link)
        return protocol

    async def ready(self) -> list[EngineFacts]:
        """Once everything is loaded. Raises what loading raised, ConnectionError if the child died of it."""
        return await self._ready

    def serve(self, engines: Sequence[AsyncEngine]) -> None:
        """Engine k is what the child calls k."""
        self._engines = engines

    def send(self, *message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(*message))

    def close(self) -> None:
        """After what was sent has gone out."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ready.done():
            self._ready.set_exception(ConnectionResetError("the engine's process is gone"))
            self._ready.exception()  # looked at: nobody may be waiting any more
        if not self.lost.done():
            self.lost.set_result(self._wrong)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._hear(message)
        except (BrokenFrame, LookupError, TypeError) as error:
            self._wrong = f"it said what is not understood: {error}"
            assert self._transport is not None
            self._transport.abort()

    def _hear(self, message: Message) -> None:
        match message:
            case ["tokens", int() as number, *plain]:
                self._engines[number].told_rows(plain)
            case ["scored", int() as number, int() as key, list() as plain, bool() as done, error]:
                self._engines[number].told_scored(key, plain, done, read_failure(error))
            case ["stats", int() as number, plain]:
                stats = read_as(EngineStats, plain)
                if self._engines:
                    self._engines[number].told_stats(stats)
            case ["pong", int() as count]:
                self.pongs = count
            case ["ready", list() as plain]:
                self._ready.set_result([read_as(EngineFacts, one) for one in plain])
            case ["refused", plain]:
                with contextlib.suppress(asyncio.InvalidStateError):
                    self._ready.set_exception(read_failure(plain) or EngineGone("loading failed"))
            case ["dying", plain]:
                self._wrong = str(read_failure(plain))
            case _:
                raise BrokenFrame(f"a message {message[0]!r} with fields that are not known")
