"""/v1/completions: one prompt or several, each with its answers."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from llmc.runtime.loop.results import Output
from llmc.serve.answering import Answering, scored
from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.answer import DONE, Head, Usage
from llmc.serve.protocol.completion_answer import CompletionAnswer, Echo
from llmc.serve.protocol.completions import CompletionRequest, Prompt, read_completion
from llmc.serve.protocol.logprobs import LogprobBodies
from llmc.serve.server import Model, Server

T = TypeVar("T")


async def completions(server: Server, exchange: Exchange) -> None:
    request = read_completion(await exchange.json())
    generation = request.generation
    model = server.model(generation.model)
    params = generation.params(model.engine)
    prompts = [await _ids(model, prompt) for prompt in request.prompts]
    logprobs = LogprobBodies(model.texts, generation.ids_as_tokens)
    answer = CompletionAnswer(Head.new("cmpl", model.name), request, logprobs)
    if request.score_only:
        echoes = [await _echo(server, exchange, model, request, at, ids) for at, ids in enumerate(prompts)]
        each = [echo for echo in echoes for _ in range(generation.n)]
        choices = [answer.choice(at, None, echo) for at, echo in enumerate(each)]
        await exchange.reply(answer.body(choices, Usage(sum(map(len, prompts)), 0)))
        return
    async with AsyncExitStack() as stack:
        # All are queued, or none: a later prompt that is refused takes the earlier ones back.
        under_way = [
            await stack.enter_async_context(await Answering.begin(server, exchange, model, ids, generation, params))
            for ids in prompts
        ]
        if generation.stream:
            await _stream(exchange, model, request, answer, under_way)
        else:
            await _whole(server, exchange, model, request, answer, prompts, under_way)


async def _whole(
    server: Server,
    exchange: Exchange,
    model: Model,
    request: CompletionRequest,
    answer: CompletionAnswer,
    prompts: Sequence[list[int]],
    under_way: Sequence[Answering],
) -> None:
    finished = await _together([one.finish(exchange) for one in under_way])
    choices: list[dict[str, Any]] = []
    for at, (found, _) in enumerate(finished):
        prompt = await _echo(server, exchange, model, request, at, prompts[at])
        choices += [answer.choice(len(choices) + sample, one, prompt) for sample, one in enumerate(found)]
    await exchange.reply(answer.body(choices, _sum([usage for _, usage in finished])))


async def _stream(
    exchange: Exchange,
    model: Model,
    request: CompletionRequest,
    answer: CompletionAnswer,
    under_way: Sequence[Answering],
) -> None:
    async def one(at: int) -> Usage:
        first = at * request.generation.n
        before = dict.fromkeys(range(request.generation.n), _text(model, request.prompts[at]) if request.echo else "")

        def frame(output: Output) -> bytes:
            return answer.chunk(output, first + output.sample, before.pop(output.sample, ""))

        await under_way[at].write(exchange, frame)
        return (await under_way[at].finish(exchange))[1]

    usage = _sum(await _together([one(at) for at in range(len(under_way))]))
    if request.generation.include_usage:
        await exchange.frame(answer.usage_chunk(usage))
    await exchange.end(DONE)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Side by side. The first that fails ends the others."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _ids(model: Model, prompt: Prompt) -> list[int]:
    return await model.encode(prompt) if isinstance(prompt, str) else prompt


async def _echo(
    server: Server, exchange: Exchange, model: Model, request: CompletionRequest, at: int, ids: list[int]
) -> Echo | None:
    """The prompt, if something of it was asked for."""
    of_echo = request.logprobs if request.echo else None
    wanted = [top for top in (of_echo, request.prompt_logprobs) if top is not None]
    if not (request.echo or wanted or request.generation.with_ids):
        return None
    scores = None
    if wanted or request.score_only:  # which also says whether the model has these ids
        scores = await scored(server, exchange, model, ids, max(wanted, default=0))
    return Echo(_text(model, request.prompts[at]), ids, scores)


def _text(model: Model, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return model.engine.tokenizer.decode(prompt) if model.engine.tokenizer is not None else ""


def _sum(usages: Sequence[Usage]) -> Usage:
    return sum(usages[1:], usages[0])
