"""What operators ask: is it alive, is it ready, how is it doing, which version."""

from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.errors import ApiError
from llmc.serve.server import Server


async def health(server: Server, exchange: Exchange) -> None:
    """503 means: restart me."""
    if not server.is_alive:
        raise server.not_ready or ApiError(503, "the engine is not there")
    await exchange.reply({"status": "ok"})


async def ready(server: Server, exchange: Exchange) -> None:
    """503 means: send me nothing."""
    if (refusal := server.not_ready) is not None:
        raise refusal
    await exchange.reply({"status": "ready"})


async def metrics(server: Server, exchange: Exchange) -> None:
    await exchange.reply(server.metrics.text(), kind=b"text/plain; version=1.0.0; charset=utf-8")


async def version(server: Server, exchange: Exchange) -> None:
    versions = {model.engine.facts.version for model in server.models.values()}
    await exchange.reply({"version": next(iter(versions), None)})
