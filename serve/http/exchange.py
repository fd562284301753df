"""One request and its response, over ASGI: a bounded body in, JSON or server-sent events out, and a client that may go.

Frames of a stream are written without tasks or queues of their own: a slow reader holds up its own handler alone.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from llmc.serve.protocol.errors import ApiError
from llmc.serve.protocol.json_body import MAX_BODY_BYTES, parse_object

Scope = Mapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

# Of scope["extensions"]: closes the connection without writing what is left; its pipe.
ABORT, PIPE = "llmc.abort", "llmc.pipe"
BODY_SECONDS = 30.0  # for a whole body
QUIET_SECONDS = 15.0  # after which a stream gets a comment, so that proxies keep it
STALLED_SECONDS = 60.0  # for which a reader may take nothing
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Pipe(Protocol):
    """What a connection may offer beside ASGI: a stream's pieces are written where they come from, with no task that
    waits for it."""

    def takes_pieces(self) -> bool:
        """Whether the body of a stream is under way, and its reader keeps up."""

    def put_piece(self, data: bytes) -> None:
        """Write a piece of it."""


class Exchange:
    """`status` is what was answered, 0 before; `gone` says that the client went away before the end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route = ""  # that answers it, as it is written in the table
        self.id = secrets.token_hex(16)
        self.status = 0
        self.gone = False
        self.began = time.perf_counter()
        self.extra_headers: list[Header] = []  # of any response, as CORS adds them
        self.facts: dict[str, Any] = {}  # for the log
        self._receive = receive
        self._send = send
        self._watching: asyncio.Task[None] | None = None
        self._cancels: list[Callable[[], object]] = []
        self._pipe: Pipe | None = scope.get("extensions", {}).get(PIPE)
        self._streams = False
        self._ended = False
        self._sending_since: float | None = None
        self._last_sent = self.began

    def header(self, name: bytes) -> str | None:
        found = next((value for key, value in self.scope["headers"] if key == name), None)
        return None if found is None else found.decode("latin-1")

    @property
    def client_id(self) -> str | None:
        """The client's own X-Request-Id, if it is a harmless one."""
        given = self.header(b"x-request-id")
        return given if given is not None and _CLIENT_ID.fullmatch(given) else None

    async def json(self) -> dict[str, Any]:
        """The body as an object. Raises ApiError.

        Other content types than JSON's are refused: a foreign web page could send them to this address unasked.
        """
        kind = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(415, f"the content type must be application/json, got {kind or 'none'!r:.80}")
        if self.header(b"content-encoding") not in (None, "identity"):
            raise ApiError(415, "compressed bodies are not read")
        return parse_object(await self._body())

    async def _body(self) -> bytes:
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length[:16]) > MAX_BODY_BYTES:
            raise self._too_large()
        pieces = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self.gone = True
                        raise ApiError(499, "the client went away")
                    pieces += message.get("body", b"")
                    if len(pieces) > MAX_BODY_BYTES:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return bytes(pieces)
        except TimeoutError as error:
            raise ApiError(408, f"the body did not come within {BODY_SECONDS:g} s") from error

    def _too_large(self) -> ApiError:
        self.extra_headers.append((b"connection", b"close"))  # or the rest would have to be read
        return ApiError(413, f"the body has more than {MAX_BODY_BYTES} bytes", code="too_large")

    def watch(self, cancel: Callable[[], object]) -> None:
        """Call `cancel` as soon as the client goes away. For when the body has been read."""
        self._cancels.append(cancel)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        elif self.gone:
            cancel()

    async def reply(
        self,
        body: Any,
        status: int = 200,
        headers: Sequence[Header] = (),
        kind: bytes = b"application/json",
    ) -> None:
        """A whole response: bytes as they are, anything else as JSON."""
        payload = body if isinstance(body, bytes) else orjson.dumps(body)
        length = (b"content-length", str(len(payload)).encode())
        await self._start(status, [(b"content-type", kind), length, *headers])
        await self._write(payload, more=False)

    async def refuse(self, error: ApiError) -> None:
        """With its status, or as the last event of a stream that has begun."""
        if self._ended or self.gone:
            self.status = self.status or error.status
            return
        if self._streams:
            self.facts["failed"] = error.status
            await self._write(b"data: " + orjson.dumps(error.body) + b"\n\n", more=False)
            return
        await self.reply(error.body, error.status, error.headers)

    async def frame(self, frame: bytes) -> None:
        """One event of a stream, which begins with the first."""
        if not self._streams:
            self._streams = True
            await self._start(200, _STREAM_HEADERS)
        await self._write(frame, more=True)

    @property
    def flows(self) -> bool:
        """Whether `put` would do: not before the first frame is out, nor while a slow reader has to be waited for."""
        pipe = self._pipe
        return pipe is not None and self._streams and self._sending_since is None and pipe.takes_pieces()

    def put(self, frame: bytes) -> None:
        """As `frame`, at once."""
        assert self._pipe is not None
        self._pipe.put_piece(frame)
        self._last_sent = time.perf_counter()

    async def end(self, frame: bytes) -> None:
        """The last event."""
        if not self._streams:
            self._streams = True
            await self._start(200, _STREAM_HEADERS)
        await self._write(frame, more=False)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _start(self, status: int, headers: Sequence[Header]) -> None:
        self.status = status
        request_id = (b"x-request-id", (self.client_id or self.id).encode())
        fixed = [request_id, (b"x-content-type-options", b"nosniff")]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *fixed, *self.extra_headers]}
        )

    async def _write(self, data: bytes, more: bool) -> None:
        self._ended = not more
        self._sending_since = time.perf_counter()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._sending_since, self._last_sent = None, time.perf_counter()

    async def _watch(self) -> None:
        """Until the client goes away; meanwhile keep a quiet stream alive, and cut off who takes nothing."""
        receiving = asyncio.ensure_future(self._receive())
        try:
            while True:
                done, _ = await asyncio.wait({receiving}, timeout=QUIET_SECONDS)
                if not done:
                    await self._look_after_stream()
                elif receiving.result()["type"] == "http.disconnect":
                    break
                else:
                    receiving = asyncio.ensure_future(self._receive())
        finally:
            receiving.cancel()
        if not self._ended:
            self.gone = True
            for cancel in self._cancels:
                cancel()

    async def _look_after_stream(self) -> None:
        now = time.perf_counter()
        if self._sending_since is not None:
            if now - self._sending_since > STALLED_SECONDS:
                self.scope.get("extensions", {}).get(ABORT, lambda: None)()
        elif self._streams and not self._ended and now - self._last_sent >= QUIET_SECONDS:
            await self._write(b": still here\n\n", more=True)
