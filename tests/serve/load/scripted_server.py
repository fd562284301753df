"""A server double: answers of a script, with its gaps, over real sockets; and what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Piece = bytes | float  # bytes to send, or seconds to wait


@dataclass
class Scripted:
    """`answers`: of posts to the API, in turn and over again, each a status and its pieces; `pages`: of gets."""

    answers: Sequence[tuple[int, Sequence[Piece]]]
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    most_under_way: int = 0
    _under_way: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b" ", 2)
                if method == b"GET":
                    page = self.pages.get(path.decode())
                    _head(writer, 404 if page is None else 200, chunked=False, length=len(page or b""))
                    writer.write(page or b"")
                else:
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    await self._post(path.decode(), json.loads(await reader.readexactly(length)), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _post(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not path.endswith("completions"):
            page = self.pages.get(path)
            _head(writer, 404 if page is None else 200, chunked=False, length=len(page or b""))
            writer.write(page or b"")
            return
        status, pieces = self.answers[len(self.asked) % len(self.answers)]
        self.asked.append({"path": path, **body})
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        _head(writer, status, chunked=True)
        try:
            for piece in pieces:
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                elif not piece:
                    raise ConnectionError("as the script says")
                else:
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    await writer.drain()
        finally:
            self._under_way -= 1
        writer.write(b"0\r\n\r\n")


def _head(writer: asyncio.StreamWriter, status: int, chunked: bool, length: int = 0) -> None:
    body = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    writer.write(f"HTTP/1.1 {status} X\r\nServer: scripted\r\n{body}\r\n\r\n".encode())


@contextmanager
def running(scripted: Scripted) -> Iterator[str]:
    """The address of a server that answers in a thread of its own while the block runs."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(scripted.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def said(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}], usage=None)


def usage(prompt: int, completion: int, **details: int) -> bytes:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event(choices=[], usage=counts | ({"prompt_tokens_details": details} if details else {}))


DONE = b"data: [DONE]\n\n"
MODELS = {"/v1/models": json.dumps({"object": "list", "data": [{"id": "m"}]}).encode()}
