"""The client against a scripted server: what it reads out of streams, when it sends, what it says of failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from llmc.serve.load.connection import Client, Exchange
from llmc.serve.load.drive import drive
from llmc.serve.load.plan import Planned
from llmc.serve.load.prompts import IdPrompts, TextPrompts
from llmc.serve.load.records import Record, Run
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.server import ServerTarget, choose_prompts, find_model
from llmc.serve.load.stream import events, read_answer
from tests.serve.load.scripted_server import DONE, MODELS, Piece, Scripted, event, running, said, usage

PLAN = [Planned(i, 4, 3) for i in range(6)]


def run(
    scripted: Scripted,
    plan: Sequence[Planned] = PLAN,
    concurrency: int | None = 2,
    chat: bool = False,
    timeout: float = 20.0,
) -> Run:
    async def go(url: str) -> Run:
        client = Client(url, "key", timeout)
        prompts = TextPrompts() if chat else IdPrompts(range(100))
        target = ServerTarget(client, url, "m", prompts, chat, {"ignore_eos": None, "top_p": 1})
        try:
            return await target.run(plan, concurrency, "seed", lambda: None)
        finally:
            await client.close()

    with running(scripted) as url:
        return asyncio.run(go(url))


def one(*pieces: Piece, status: int = 200, chat: bool = False, timeout: float = 20.0) -> Record:
    (record,) = run(Scripted([(status, pieces)]), PLAN[:1], 1, chat, timeout).records
    return record


def test_a_stream_is_timed_output_by_output() -> None:
    record = one(0.05, said("a"), 0.1, said("b"), said("c"), said("", "length"), usage(4, 3), DONE)
    assert record.error is None and record.counted and len(record.outputs) == 3
    assert record.ttft >= 0.05 and record.outputs[1] - record.outputs[0] >= 0.08
    assert record.outputs[0] < record.outputs[1] <= record.outputs[2] <= record.end
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (4, 3, None)


def test_events_may_be_cut_anywhere_and_lines_may_end_as_in_the_standard() -> None:
    stream = said("a").replace(b"\n", b"\r\n") + b": a comment\n\n" + said("b") + DONE
    whole = [data for _, data in events(Exchange(0.0, 200, [(1.0, stream)]))]
    assert [json.loads(data)["choices"][0]["text"] for data in whole[:2]] == ["a", "b"] and whole[2:] == [b"[DONE]"]
    cut = Exchange(0.0, 200, [(float(i), stream[i : i + 1]) for i in range(len(stream))])
    assert [data for _, data in events(cut)] == whole
    assert [when for when, _ in events(cut)][-1] == len(stream) - 1


def test_tokens_that_a_server_joins_are_counted_by_its_usage() -> None:
    record = one(said("a"), said("bcd", "length"), usage(9, 4, cached_tokens=8), DONE)
    assert (len(record.outputs), record.output_tokens, record.prompt_tokens, record.cached_tokens) == (2, 4, 9, 8)


def test_without_usage_outputs_are_counted_and_it_is_told() -> None:
    record = one(said("a"), said(""), said("c", "stop"), DONE)
    assert record.output_tokens == 3 and record.prompt_tokens == 4 and not record.counted


def test_a_chat_begins_with_its_first_word_not_with_its_role() -> None:
    def delta(finish: str | None = None, **fields: str) -> bytes:
        return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])

    record = one(
        delta(role="assistant", content=""),
        0.05,
        delta(reasoning_content="hm"),
        delta(content="so"),
        delta(finish="stop"),
        usage(20, 2),
        DONE,
        chat=True,
    )
    assert record.ttft >= 0.05 and len(record.outputs) == 2 and record.error is None


NO_CHUNKS = (
    b"[1]",
    b"null",
    b'{"choices": 5}',
    b'{"choices": [5]}',
    b'{"choices": [{"delta": null}]}',
    b'{"usage": "x"}',
    b'{"usage": {"prompt_tokens": "x"}}',
    b'{"usage": {"completion_tokens": -3}}',
    b'{"usage": {"prompt_tokens_details": 1}}',
)


@pytest.mark.parametrize(
    "status, pieces, error",
    [
        (429, [b'{"error": {"message": "the queue is full"}}'], "HTTP 429: the queue is full"),
        (500, [b"oops"], "HTTP 500: oops"),
        (200, [said("a"), event(error={"message": "the engine died"})], "in the stream: the engine died"),
        (200, [said("a")], "the stream broke off"),
        (200, [said("a"), b""], "connection lost"),
        (200, [b"data: {\n\n", DONE], "an event is no JSON: b'{'"),
        *((200, [b"data: %s\n\n" % said, DONE], f"an event is no chunk of an answer: {said!r}") for said in NO_CHUNKS),
        (200, [said("", "stop"), DONE], "an answer without a token"),
    ],
)
def test_what_is_no_answer_is_an_error(status: int, pieces: list[Piece], error: str) -> None:
    assert one(*pieces, status=status).error == error


def test_an_answer_that_takes_too_long_is_an_error() -> None:
    assert one(said("a"), 5.0, DONE, timeout=0.1).error == "no end within 0.1 s"


def test_nobody_there_is_an_error_of_each_request() -> None:
    async def go() -> Exchange:
        client = Client("http://127.0.0.1:1")
        return await client.send(client.get("/"))

    assert "cannot connect" in str(asyncio.run(go()).broken)


def test_a_closed_loop_keeps_so_many_in_flight_on_so_many_connections() -> None:
    scripted = Scripted([(200, [0.02, said("a", "stop"), usage(4, 1), DONE])])
    found = run(scripted, concurrency=3)
    assert [record.error for record in found.records] == [None] * 6
    assert scripted.most_under_way == 3 and scripted.connections == 3
    assert found.client_cpu is not None and found.client_cpu > 0
    assert found.seconds == max(record.end for record in found.records)


def test_an_open_loop_sends_at_arrivals_however_many_are_under_way() -> None:
    plan = [Planned(i, 4, 1, arrival=0.03 * i) for i in range(4)]
    scripted = Scripted([(200, [0.3, said("a", "stop"), usage(4, 1), DONE])])
    records = run(scripted, plan, None).records
    assert scripted.most_under_way == 4
    assert [record.begin for record in records] == [0.0, 0.03, 0.06, 0.09]
    assert all(record.sent >= record.begin for record in records)


def test_requests_ask_for_the_planned_work() -> None:
    scripted = Scripted([(200, [said("a", "stop"), DONE])])
    run(scripted, [Planned(0, 4, 9, latency="batch")], 1)
    (asked,) = scripted.asked
    assert asked.pop("prompt") == IdPrompts(range(100)).make(Planned(0, 4, 9), "seed")
    assert asked == {
        "path": "/v1/completions",
        "model": "m",
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "latency": "batch",
        "top_p": 1,
    }


def test_a_chat_is_asked_with_text() -> None:
    scripted = Scripted([(200, [said("a", "stop"), DONE])])
    run(scripted, PLAN[:1], 1, chat=True)
    (asked,) = scripted.asked
    assert asked["path"] == "/v1/chat/completions" and len(asked["messages"][0]["content"].split()) == 4


def test_gauges_are_read_from_the_metrics_page() -> None:
    page = (
        "# HELP vllm:kv_cache_usage_perc x\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
        "process_resident_memory_bytes 1.5e6\nvllm:iteration_tokens_total_count 7.0\n"
    )
    scripted = Scripted([(200, [said("a", "stop"), DONE])], {"/metrics": page.encode()})
    found = run(scripted).gauges
    assert (found.kv_peak, found.memory_bytes, found.steps) == (0.5, 1500000, 0)


def test_the_server_is_asked_for_its_model_and_for_ids() -> None:
    async def go(url: str) -> tuple[str, object]:
        client = Client(url + "/v1")
        try:
            return await find_model(client, url), await choose_prompts(client, "m", None, chat=False)
        finally:
            await client.close()

    with running(Scripted([], MODELS | {"/tokenize": b'{"tokens": [5, 3, 5]}'})) as url:
        assert asyncio.run(go(url)) == ("m", IdPrompts([3, 5]))
    with running(Scripted([], MODELS)) as url:
        assert asyncio.run(go(url)) == ("m", TextPrompts())
    for strange in (b"<html>", b"", b"[1]", b'{"tokens": 3}', b'{"tokens": [{"id": 1}]}', b'{"tokens": ["a", 1]}'):
        with running(Scripted([], MODELS | {"/tokenize": strange})) as url:
            assert asyncio.run(go(url)) == ("m", TextPrompts())
    with running(Scripted([])) as url, pytest.raises(BenchRefused, match="HTTP 404"):
        asyncio.run(go(url))


def test_other_addresses_are_refused() -> None:
    for url in ("localhost:8000", "ftp://x", "http://"):
        with pytest.raises(BenchRefused, match="no address of a server"):
            Client(url)


def test_drive_keeps_the_order_of_the_plan() -> None:
    async def send(planned: Planned) -> Exchange:
        await asyncio.sleep(0.01 * (6 - planned.index))
        return Exchange(float(planned.index))

    exchanges = asyncio.run(drive(PLAN, 6, send))
    assert [exchange.sent for exchange in exchanges] == [0, 1, 2, 3, 4, 5]


def test_read_answer_takes_time_from_the_beginning_of_the_run() -> None:
    exchange = Exchange(10.5, 200, [(11.0, said("a")), (12.0, said("b", "stop") + DONE)])
    found = read_answer(exchange, PLAN[0], 10.0, 0.25)
    assert (found.begin, found.sent, found.ttft, found.e2e) == (0.25, 0.5, 0.75, 1.75)
