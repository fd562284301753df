"""A request to the server's own application, without a socket: the routes, schemas and bodies are those of HTTP."""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from llmc.serve.batch.failure import BatchStopped
from llmc.serve.http.app import App
from llmc.serve.http.exchange import Message

_WAIT = 0.05  # seconds until a full queue is asked again
_STOPPING = 503


@dataclass
class Response:
    status: int = 0
    body: bytes = b""
    request_id: str = ""


async def ask(app: App, url: str, body: dict[str, Any]) -> Response:
    """The answer, once the engine's queue has room. Raises BatchStopped if the engine is gone.

    A request that fails is asked once more: what failed may have been a step, and not the request.
    """
    payload = orjson.dumps(body)
    num_failed = 0
    while True:
        response = await _call(app, url, payload)
        if response.status == _STOPPING:
            cause = orjson.loads(response.body)["error"]["message"]
            raise BatchStopped(f"stopped: {cause}; the same command goes on from here")
        num_failed += response.status >= 500
        if response.status != 429 and (response.status < 500 or num_failed > 1):
            return response
        await asyncio.sleep(_WAIT)


async def _call(app: App, url: str, payload: bytes) -> Response:
    response = Response()
    given = [payload]
    never = asyncio.Event()  # nobody goes away from here

    async def receive() -> Message:
        if not given:
            await never.wait()
        return {"type": "http.request", "body": given.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.request_id = dict(message["headers"])[b"x-request-id"].decode()
        else:
            response.body += message["body"]

    scope = {"type": "http", "method": "POST", "path": url, "headers": [(b"content-type", b"application/json")]}
    await app(scope, receive, send)
    return response
