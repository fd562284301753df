"""/v1/chat/completions"""

from llmc.serve.answering import Answering, scored
from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.answer import DONE, Head
from llmc.serve.protocol.chat import ChatRequest, read_chat
from llmc.serve.protocol.chat_answer import ChatAnswer
from llmc.serve.protocol.logprobs import LogprobBodies
from llmc.serve.server import Model, Server


async def chat(server: Server, exchange: Exchange) -> None:
    request = read_chat(await exchange.json())
    generation = request.generation
    model = server.model(generation.model)
    params = generation.params(model.engine)
    ids = await model.encode_chat(request.messages, request.variables)
    answer = chat_answer(model, request, ids)
    async with await Answering.begin(server, exchange, model, ids, generation, params) as answering:
        if generation.stream:
            await answering.write(exchange, lambda output: answer.chunk(output, output.sample))
        completions, usage = await answering.finish(exchange)
        if not generation.stream:
            wanted = request.prompt_logprobs
            scores = await scored(server, exchange, model, ids, wanted) if wanted is not None else None
            await exchange.reply(answer.body(completions, usage, scores))
            return
    if generation.include_usage:
        await exchange.frame(answer.usage_chunk(usage))
    await exchange.end(DONE)


def chat_answer(model: Model, request: ChatRequest, ids: list[int]) -> ChatAnswer:
    logprobs = LogprobBodies(model.texts, request.generation.ids_as_tokens)
    return ChatAnswer(Head.new("chatcmpl", model.name), request, logprobs, lambda: model.parser(request.tools, ids))
