"""`/`, its files, and `/llmc/live`. Files are open to all; what they show needs a key as everything else does."""

from functools import cache
from importlib import resources

from llmc.serve.http.exchange import Exchange, Header
from llmc.serve.http.routing import Route
from llmc.serve.page.live import live_body
from llmc.serve.protocol.errors import ApiError
from llmc.serve.server import Server

_KINDS = {"html": b"text/html", "css": b"text/css", "js": b"text/javascript", "svg": b"image/svg+xml"}
# Nothing but this server's own files runs, is shown or is asked; and no other page may frame this one.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: list[Header] = [
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]


async def page(server: Server, exchange: Exchange) -> None:
    await _send(exchange, "index.html")


async def asset(server: Server, exchange: Exchange) -> None:
    await _send(exchange, exchange.path.removeprefix("/page/"))


async def live(server: Server, exchange: Exchange) -> None:
    await exchange.reply(live_body(server), headers=[(b"cache-control", b"no-store")])


async def _send(exchange: Exchange, name: str) -> None:
    found = _files().get(name)
    if found is None:
        raise ApiError(404, f"there is no {exchange.path!r:.200} here", code="not_found")
    kind = _KINDS[name.rpartition(".")[2]] + b"; charset=utf-8"
    await exchange.reply(found, headers=_HEADERS, kind=kind)


@cache
def _files() -> dict[str, bytes]:
    """All of them, by name: no path of a request ever reaches a file system."""
    folder = resources.files("llmc.serve.page") / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _KINDS}


PAGE_ROUTES: tuple[Route[Server], ...] = (
    Route("GET", "/", page, open=True),
    Route("GET", "/page/*", asset, open=True),
    Route("GET", "/llmc/live", live),
)
