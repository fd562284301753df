"""uvicorn's HTTP/1.1 with bounds that it lacks: on headers, on how long they may take, and a way to hang up."""

import asyncio
import contextlib
import http
import re
from collections.abc import Iterator
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from llmc.serve.http.exchange import ABORT, PIPE
from llmc.serve.protocol.errors import ApiError

MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 * 1024  # all of them, and the path
HEADER_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 75
_UPGRADE = re.compile(rb"(?<=\n)upgrade(?=:)", re.IGNORECASE)  # as a header's name
MAX_PIPELINED = 8  # requests that wait for the one before them, while the connection is still listened to


class BoundedHttp(HttpToolsProtocol):
    """Counts what comes before a request's body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = True
        self._refused = False
        self._answering: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = self.loop.call_later(HEADER_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells the request that came last, which is not the one being answered if they are pipelined."""
        self._disarm()
        one = self._answering
        if one is not None and not one.response_complete:
            one.disconnected = True
            one.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort, PIPE: self}  # type: ignore[dict-item]
        self._num_headers = 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._num_headers > MAX_HEADERS or head > MAX_HEADER_BYTES:
            self._refuse(_too_large())
            return
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle
        elif len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()  # or nobody would hear that the client has gone

    def on_response_complete(self) -> None:
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._answering = following

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for what is no HTTP."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def takes_pieces(self) -> bool:
        one = self._answering
        under_way = one is not None and one.chunked_encoding and not (one.disconnected or one.response_complete)
        return bool(under_way) and not self.flow.write_paused

    def put_piece(self, data: bytes) -> None:
        """As uvicorn's `send` writes it."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _refuse(self, error: ApiError) -> None:
        self._refused = True
        if not self.transport.is_closing():
            body = orjson.dumps(error.body)
            status = http.HTTPStatus(error.status)
            head = f"HTTP/1.1 {error.status} {status.phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
            self.transport.close()

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _without_upgrade(data: bytes) -> bytes:
    """What may begin with a head, asking for no other protocol than this one: a server may ignore that it is asked.

    The parser would drop the body of such a request, and Java's clients send `Upgrade: h2c` with all of theirs.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"ignored", head) + end + rest


def _too_large() -> ApiError:
    return ApiError(431, f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together are read")


class Listener(uvicorn.Server):
    """Serves an application on sockets until `should_exit`. Signals are the caller's."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
