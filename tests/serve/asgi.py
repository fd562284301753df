"""Calls the application directly, without sockets: thousands of requests in a second."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmc.serve.http.app import App
from llmc.serve.http.cors import Cors
from llmc.serve.http.exchange import Message
from llmc.serve.http.keys import ApiKeys
from llmc.serve.log import EventLog
from llmc.serve.routes.table import ROUTES
from llmc.serve.server import Server
from tests.serve.scripted import ScriptedEngine, ScriptedProcess

JSON = ((b"content-type", b"application/json"),)
Headers = Sequence[tuple[bytes, bytes]]


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """A server over scripted engines, and calls of it."""

    server: Server
    process: ScriptedProcess
    app: App
    log: io.StringIO

    @classmethod
    def of(cls, *engines: ScriptedEngine, keys: Sequence[str] = (), origins: Sequence[str] = ()) -> Client:
        process, log = ScriptedProcess(*(engines or (ScriptedEngine(),))), io.StringIO()
        server = Server(ApiKeys(keys), Cors(origins), EventLog(True, lambda line: print(line, file=log)))
        server.begin(process)
        return cls(server, process, App(server, ROUTES), log)

    @property
    def engine(self) -> ScriptedEngine:
        return next(iter(self.process.engines.values()))

    async def post(self, path: str, body: Any, headers: Headers = JSON) -> Response:
        return await self.call("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)

    async def get(self, path: str, headers: Headers = ()) -> Response:
        return await self.call("GET", path, b"", headers)

    async def call(self, method: str, path: str, body: bytes = b"", headers: Headers = ()) -> Response:
        call = Call(self.app, method, path, body, headers)
        await call.run()
        return call.response


class Call:
    """One request under way; `leave` is the client that closes its connection."""

    def __init__(self, app: App, method: str, path: str, body: bytes, headers: Headers = JSON) -> None:
        self._app = app
        self._scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.response = Response()
        self.first = asyncio.Event()  # something of the body has come

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert not self.response.complete
        if message["type"] == "http.response.start":
            assert not self.response.status
            self.response.status = message["status"]
            self.response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.first.set()
        self.response.body += message["body"]
        if not message.get("more_body", False):
            self.response.complete = True
            self._gone.set()
