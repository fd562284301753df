"""The ASGI application: keys, routes, errors and one line in the log, around the handlers."""

import time
import traceback
from collections.abc import Iterable

from llmc.serve.http.exchange import Exchange, Receive, Scope, Send
from llmc.serve.http.routing import Route, Router
from llmc.serve.protocol.errors import ApiError
from llmc.serve.server import Server

_QUIET = ("/health", "/ready", "/metrics")  # what machines ask every few seconds is not logged


class App:
    def __init__(self, server: Server, routes: Iterable[Route[Server]]) -> None:
        self._server = server
        self._router = Router(routes)
        self.num_open = 0  # requests being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        self.num_open += 1
        try:
            await self._answer(exchange)
        except ApiError as error:
            await exchange.refuse(error)
        except Exception as error:
            self._server.log.event("fault", id=exchange.id, path=exchange.path, cause=_brief(error))
            await exchange.refuse(ApiError(500, f"internal error; the log has it under {exchange.id}"))
        finally:
            self.num_open -= 1
            exchange.close()
            self._record(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        if await self._server.cors.preflight(exchange):
            return
        route = self._router.find(exchange)
        exchange.route = route.path
        if not route.open:
            self._server.keys.check(exchange.header(b"authorization"))
            if (refusal := self._server.not_ready) is not None and exchange.method == "POST":
                raise refusal
        await route.handler(self._server, exchange)

    def _record(self, exchange: Exchange) -> None:
        status = 499 if exchange.gone else exchange.status
        if status >= 400:
            self._server.metrics.refused(status)
        if self._server.spans is not None:
            self._server.spans.record(exchange, status)
        if exchange.path in _QUIET and status < 400:
            return
        self._server.log.event(
            "request",
            id=exchange.id,
            client_id=exchange.client_id,
            method=exchange.method,
            path=exchange.path,
            status=status,
            seconds=time.perf_counter() - exchange.began,
            **exchange.facts,
        )


def _brief(error: Exception) -> str:
    """Where it happened and what: types and places, none of the request's values."""
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__} at {' '.join(places[-6:])}"
