"""Which handler answers a method and a path."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.errors import ApiError

S = TypeVar("S")


@dataclass(frozen=True)
class Route(Generic[S]):
    """A path that ends with `/*` stands for every one that begins so. `open`: without a key, and before the engines
    are there."""

    method: str
    path: str
    handler: Callable[[S, Exchange], Awaitable[None]]
    open: bool = False


class Router(Generic[S]):
    def __init__(self, routes: Iterable[Route[S]]) -> None:
        self._exact: dict[str, dict[str, Route[S]]] = {}
        self._beginnings: dict[str, dict[str, Route[S]]] = {}
        for route in routes:
            table = self._beginnings if route.path.endswith("/*") else self._exact
            table.setdefault(route.path.removesuffix("*"), {})[route.method] = route

    def find(self, exchange: Exchange) -> Route[S]:
        """Raises ApiError (404, 405)."""
        methods = self.methods(exchange.path)
        if not methods:
            raise ApiError(404, f"there is no {exchange.path!r:.200} here", code="not_found")
        route = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            exchange.extra_headers.append((b"allow", allowed.encode()))
            raise ApiError(
                405, f"{exchange.path} wants {allowed}, got {exchange.method:.20}", code="method_not_allowed"
            )
        return route

    def methods(self, path: str) -> dict[str, Route[S]]:
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        return next((found for start, found in self._beginnings.items() if path.startswith(start)), {})
