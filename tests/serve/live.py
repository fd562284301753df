"""A server over scripted engines that listens on a real port, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from llmc.serve.http.app import App
from llmc.serve.http.cors import Cors
from llmc.serve.http.keys import ApiKeys
from llmc.serve.http.listener import Listener
from llmc.serve.http.sockets import open_socket
from llmc.serve.log import EventLog
from llmc.serve.routes.table import ROUTES
from llmc.serve.server import Server
from tests.serve.scripted import ScriptedEngine, ScriptedProcess


@contextmanager
def listening(*engines: ScriptedEngine, key: str | None = None) -> Iterator[int]:
    """The port."""
    server = Server(ApiKeys([key] if key else []), Cors(()), EventLog(True, lambda line: None))
    server.begin(ScriptedProcess(*engines))
    listener = Listener(App(server, ROUTES))
    sock = open_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(listener.serve([sock])))
    thread.start()
    try:
        yield port
    finally:
        listener.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def openai_client(engine: ScriptedEngine, key: str | None = None) -> Iterator[openai.OpenAI]:
    """OpenAI's own, of a server that listens."""
    with (
        listening(engine, key=key) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key or "x", max_retries=0, timeout=30) as client,
    ):
        yield client
