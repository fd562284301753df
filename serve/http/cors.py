"""Cross-origin requests: off, unless origins are named."""

from collections.abc import Collection

from llmc.serve.http.exchange import Exchange, Header

_PREFLIGHT: list[Header] = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
    (b"access-control-max-age", b"600"),
]


class Cors:
    """`*` among the origins stands for all of them. Credentials are never allowed: keys are no cookies."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    async def preflight(self, exchange: Exchange) -> bool:
        """Mark the response for a browser that may read it; answer its question in advance, if that is what this is."""
        origin = exchange.header(b"origin")
        if origin is None or not self._origins & {origin, "*"}:
            return False
        allowed = "*" if "*" in self._origins else origin
        exchange.extra_headers += [
            (b"access-control-allow-origin", allowed.encode("latin-1")),
            (b"vary", b"origin"),
        ]
        if exchange.method != "OPTIONS" or exchange.header(b"access-control-request-method") is None:
            return False
        await exchange.reply(b"", 204, _PREFLIGHT, b"text/plain")
        return True
