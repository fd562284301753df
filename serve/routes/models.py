"""/v1/models, and what there are no engines for yet."""

import time
from typing import Any

from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.errors import ApiError
from llmc.serve.server import Model, Server

_SINCE = int(time.time())


async def models(server: Server, exchange: Exchange) -> None:
    await exchange.reply({"object": "list", "data": [_body(model) for model in server.models.values()]})


async def one_model(server: Server, exchange: Exchange) -> None:
    await exchange.reply(_body(server.model(exchange.path.removeprefix("/v1/models/"))))


async def embeddings(server: Server, exchange: Exchange) -> None:
    raise ApiError(
        400, "engines here generate text; there are none for embeddings yet", "model", "unsupported_endpoint"
    )


def _body(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": _SINCE,
        "owned_by": "llmc",
        "root": model.name,
        "parent": None,
        "max_model_len": model.engine.facts.max_len,
        "chat": model.chat_facts,
    }
