"""/tokenize and /detokenize, as vLLM has them."""

import asyncio
from typing import Any

from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.chat import read_chat
from llmc.serve.protocol.errors import bad
from llmc.serve.protocol.fields import Fields
from llmc.serve.protocol.generation import check_token_ids, read_model
from llmc.serve.server import Model, Server

_MAX_CHARS = 4 * 2**20
_MAX_IDS = 2**17


async def tokenize(server: Server, exchange: Exchange) -> None:
    body = await exchange.json()
    with_texts = Fields({"return_token_strs": body.pop("return_token_strs", None)}).boolean("return_token_strs")
    model, ids = await (_of_chat(server, body) if "messages" in body else _of_text(server, body))
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.engine.facts.max_len, "tokens": ids}
    answer["token_strs"] = [model.texts.text(token) for token in ids] if with_texts else None
    await exchange.reply(answer)


async def detokenize(server: Server, exchange: Exchange) -> None:
    fields = Fields(await exchange.json())
    model = server.model(read_model(fields))
    given = fields.take("tokens")
    fields.finish(tables=False)
    if not isinstance(given, list) or len(given) > _MAX_IDS:
        raise bad(f"tokens must be an array of at most {_MAX_IDS} token ids", "tokens", "invalid_type")
    ids = check_token_ids(given, "tokens")
    tokenizer = model.engine.tokenizer
    text = await asyncio.to_thread(tokenizer.decode, ids) if tokenizer is not None else ""
    await exchange.reply({"prompt": text})


async def _of_chat(server: Server, body: dict[str, Any]) -> tuple[Model, list[int]]:
    request = read_chat(body)
    model = server.model(request.generation.model)
    return model, await model.encode_chat(request.messages, request.variables)


async def _of_text(server: Server, body: dict[str, Any]) -> tuple[Model, list[int]]:
    """Without special tokens a text has no BOS."""
    fields = Fields(body)
    model = server.model(read_model(fields))
    text = fields.take("prompt")
    if not isinstance(text, str) or len(text) > _MAX_CHARS:
        raise bad(f"prompt must be a string of at most {_MAX_CHARS} characters", "prompt", "invalid_type")
    special = fields.boolean("add_special_tokens", True)
    fields.finish(tables=False)
    ids = await model.encode(text)
    return model, ids if special else ids[len(await model.encode("")) :]
