"""Replicas of `llmc serve` behind prefix-aware routing.

    serve run deploy.ray_serve.app:build engine=/srv/llmc/smollm2.engine replicas=2 threads=8

Each replica is a server of its own on a unix socket. The ingress reads a request's prefix, lets the router choose, and
hands through what the server answers, as it comes.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from deploy.ray_serve.prefix import prefix_keys

Head = tuple[int, dict[str, str]]  # status and headers: the first item of an answer, before its bytes
DRAIN_SECONDS = 120.0
READY_SECONDS = 300.0
_ASKED = ("authorization", "content-type", "x-request-id", "traceparent", "accept")
_ANSWERED = ("content-type", "retry-after", "x-request-id", "cache-control", "allow")
_GONE = {
    "error": {
        "message": "the replica that was to answer is gone",
        "type": "service_unavailable_error",
        "param": None,
        "code": "engine_gone",
    }
}


class Replica:
    """One `llmc serve`. It dies with this process, and this process with it: Ray then asks here no more, where a
    replica that refuses everything quickly would seem the idlest of all."""

    async def __init__(self, engine: str, options: list[str], llmc: str) -> None:  # type: ignore[misc]  # Ray awaits it
        self._folder = tempfile.TemporaryDirectory(prefix="llmc-replica-")
        socket = Path(self._folder.name) / "socket"
        command = [llmc, "serve", engine, "--uds", str(socket), "--log-json", *options]
        self._server = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command])
        self._leaving = False
        threading.Thread(target=self._leave_with_server, daemon=True).start()
        self._http = aiohttp.ClientSession("http://llmc", connector=aiohttp.UnixConnector(str(socket), limit=0))
        self._name = serve.get_replica_context().replica_id.unique_id
        async with asyncio.timeout(READY_SECONDS):
            while not await self._says("/ready"):
                await asyncio.sleep(0.05)

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, prefix: tuple[bytes, ...]
    ) -> AsyncGenerator[Head | bytes]:
        """`prefix` is the router's. Whoever stops reading cancels the request in the engine."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.request(method, path, headers=headers, data=body, timeout=timeout) as answer:
            kept = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
            yield answer.status, {**kept, "x-llmc-replica": self._name}
            async for data in answer.content.iter_any():
                yield data

    async def check_health(self) -> None:
        """Raises if Ray should start another one."""
        if not await self._says("/health"):
            raise RuntimeError(f"the server of replica {self._name} does not answer /health")

    async def _says(self, path: str) -> bool:
        try:
            async with self._http.get(path) as answer:
                return bool(answer.status == 200)
        except aiohttp.ClientError:
            return False

    def _leave_with_server(self) -> None:
        """The log has what it ended of."""
        code = self._server.wait()
        if not self._leaving:
            self._folder.cleanup()
            os._exit(code or 1)

    def __del__(self) -> None:
        """Ray has let the requests end that it had sent here."""
        self._leaving = True
        self._server.terminate()
        self._server.wait(DRAIN_SECONDS)


class Ingress:
    """What HTTP comes to: a table of prefixes each, so one of them unless one is too slow."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = self._replicas.forward.remote(request.method, path, headers, body, prefix=prefix_keys(body))
        try:
            status, answered = await anext(answer)
        except RayError:
            return JSONResponse(_GONE, 503, {"retry-after": "1"})
        streams = answered.get("content-type", "").startswith("text/event-stream")
        return StreamingResponse(_rest(answer, streams), status, answered)


async def _rest(answer: Any, streams: bool) -> AsyncGenerator[bytes]:
    """Cancels what nobody waits for. If the replica dies meanwhile, a stream says so, as the server's own do."""
    try:
        async for data in answer:
            yield data
    except RayError:
        if not streams:
            raise
        yield b"data: " + json.dumps(_GONE).encode() + b"\n\n"
    finally:
        answer.cancel()


def build(args: Mapping[str, str]) -> serve.Application:
    """Of `engine`, and of what deploy/README.md lists beside it."""
    threads = int(args.get("threads", "1"))
    router = RequestRouterConfig(
        request_router_class="deploy.ray_serve.router.PrefixRouter",
        request_router_kwargs={"slack": int(args.get("slack", "8"))},
    )
    replicas = serve.deployment(
        Replica,
        num_replicas=int(args.get("replicas", "2")),
        max_ongoing_requests=int(args.get("ongoing", "64")),
        ray_actor_options={"num_cpus": threads},
        request_router_config=router,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        health_check_period_s=2,
        health_check_timeout_s=10,
    )
    options = ["--threads", str(threads), *args.get("options", "").split()]
    bound = replicas.bind(args["engine"], options, args.get("llmc", "llmc"))
    return serve.deployment(
        Ingress,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
    ).bind(bound)
