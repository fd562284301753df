"""A client that does what no library lets one do: half a request, no reading, hanging up in the middle."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httptools


class Wire:
    """One connection. What arrives is taken when it is read for, a piece at a time, and not before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser: httptools.HttpResponseParser | None = None
        self.begin()

    def begin(self) -> None:
        """Another response is to come."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read(self, most: int = 1 << 16) -> bool:
        """Take some of what has come; False at the end of the response, or of the connection."""
        if self.complete:
            return False
        piece = await self._reader.read(most)
        if not piece:
            return False
        assert self._parser is not None
        self._parser.feed_data(piece)
        return not self.complete

    async def response(self) -> int:
        """All of it; the status, 0 if the connection ended before there was one."""
        while await self.read():
            pass
        return self.status

    async def raw(self) -> bytes:
        """What comes next, as it is."""
        return await self._reader.read(1 << 16)

    def hang_up(self) -> None:
        """At once, whatever is under way."""
        self._writer.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._parser is not None
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = self.status != 100


@asynccontextmanager
async def connected(url: str, receive_buffer: int | None = None) -> AsyncIterator[Wire]:
    """`receive_buffer`: bytes that the kernel keeps for a client that does not read."""
    parts = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 1 << 16)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def head(path: str, fields: Mapping[str, str], method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: here", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(path: str, body: Any, **fields: str) -> bytes:
    """A request as its bytes; a body that is not bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, {"Content-Type": "application/json", "Content-Length": str(len(data)), **fields}) + data
