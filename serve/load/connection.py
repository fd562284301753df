"""HTTP/1.1 to a server, with as little work as possible while an answer streams.

The client shares cores with the server that it measures: all it does with what arrives is to note the time and keep the
bytes. They are read when the run is over.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from llmc.serve.load.refusal import BenchRefused


@dataclass
class Exchange:
    """One request and what came back: the pieces of the body with the time at which each arrived."""

    sent: float
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    broken: str | None = None  # what ended it before its end
    server: str = ""  # the header of that name

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class _Connection(asyncio.Protocol):
    """One connection that is kept alive, for one exchange at a time."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange = Exchange(0.0)
        self._end: asyncio.Future[None] | None = None
        self._now = 0.0

    async def exchange(self, request: bytes) -> Exchange:
        assert self._transport is not None and self._end is None
        self._parser = httptools.HttpResponseParser(self)
        self._end = asyncio.get_running_loop().create_future()
        self._exchange = Exchange(time.perf_counter())
        self._transport.write(request)
        try:
            await self._end
        finally:
            self._end = None
        return self._exchange

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"no HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._finish(f"connection lost{f': {exc}' if exc else ''}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server":
            self._exchange.server = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._exchange.pieces.append((self._now, body))

    def on_message_complete(self) -> None:
        self._exchange.status = self._parser.get_status_code()
        self.open = self.open and self._parser.should_keep_alive()
        self._finish(None)

    def _finish(self, broken: str | None) -> None:
        if self._end is not None and not self._end.done():
            self._exchange.broken = broken
            self._end.set_result(None)


class Client:
    """A server by its address: http://HOST:PORT, with the prefix of its API if it has one. Connections are reused."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise BenchRefused(f"{url!r} is no address of a server: write http://HOST:PORT")
        self._host, self._tls = parts.hostname, ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._idle: list[_Connection] = []
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\nAccept: */*\r\n{authorization}"

    def post(self, path: str, body: bytes) -> bytes:
        """The bytes of a request, for `send`."""
        head = f"POST {self._root}{path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def get(self, path: str) -> bytes:
        return f"GET {self._root}{path} HTTP/1.1\r\n{self._headers}\r\n".encode()

    async def send(self, request: bytes) -> Exchange:
        """One exchange. What goes wrong is its `broken`: nothing is raised.

        An idle connection may be closed by the server while the request is on its way: it is then sent once more.
        """
        while True:
            reused = bool(self._idle)
            try:
                connection = self._idle.pop() if reused else await self._connect()
            except OSError as error:
                return Exchange(time.perf_counter(), broken=f"cannot connect: {error}")
            if reused and not connection.open:
                continue
            exchange = await self._on(connection, request)
            if not (reused and exchange.broken and not exchange.pieces and not connection.open):
                return exchange

    async def _on(self, connection: _Connection, request: bytes) -> Exchange:
        done = False
        try:
            async with asyncio.timeout(self._timeout):
                exchange = await connection.exchange(request)
            done = exchange.broken is None and connection.open
            return exchange
        except TimeoutError:
            return Exchange(time.perf_counter(), broken=f"no end within {self._timeout:g} s", pieces=[(0.0, b"")])
        finally:
            if done:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
