"""/v1/responses, as far as texts and calls of tools go."""

from llmc.runtime.loop.request import FinishReason
from llmc.serve.answering import Answering
from llmc.serve.http.exchange import Exchange
from llmc.serve.protocol.answer import Head, finish_reason
from llmc.serve.protocol.errors import ApiError
from llmc.serve.protocol.response_answer import ResponseAnswer
from llmc.serve.protocol.responses import read_responses
from llmc.serve.server import Server


async def responses(server: Server, exchange: Exchange) -> None:
    request = read_responses(await exchange.json())
    chat = request.chat
    generation = chat.generation
    model = server.model(generation.model)
    params = generation.params(model.engine)
    ids = await model.encode_chat(chat.messages, chat.variables)
    parser = model.parser(chat.tools, ids)
    answer = ResponseAnswer(Head.new("resp", model.name), request.stated)
    reason = FinishReason.STOP
    async with await Answering.begin(server, exchange, model, ids, generation, params) as answering:
        try:
            async for output in answering.outputs():
                if output.finish_reason is not None:
                    reason = output.finish_reason
                    finish_reason(reason, output.error)
                if not exchange.status:
                    answer.begin()
                answer.feed(chat.shown(parser.feed(output.text, output.marks)), len(output.token_ids))
                if generation.stream and (events := answer.take_events()):
                    await exchange.frame(events)
            answer.feed(chat.shown(parser.finish()), 0)
            _, usage = await answering.finish(exchange)
        except ApiError as error:
            if not exchange.status:
                raise
            answer.fail(error)
            exchange.facts["failed"] = error.status
            await exchange.end(answer.take_events())
            return
    body = answer.finish(reason, usage)
    if generation.stream:
        await exchange.end(answer.take_events())
    else:
        await exchange.reply(body)
