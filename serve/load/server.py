"""A server under load: what it is, what it takes, and one run of a plan against it."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from llmc.serve.load.connection import Client, Exchange
from llmc.serve.load.drive import drive
from llmc.serve.load.metrics_page import MetricsWatch
from llmc.serve.load.plan import Planned
from llmc.serve.load.prompts import WORDS, IdPrompts, Prompts, TextPrompts
from llmc.serve.load.records import Run
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.stream import read_answer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class ServerTarget:
    """`extra`: more fields of every request's body; one that is null takes the field out."""

    client: Client
    url: str
    model: str
    prompts: Prompts
    chat: bool = False
    extra: Mapping[str, Any] | None = None

    def request(self, planned: Planned, seed: str) -> bytes:
        """Greedy and streaming; the answer has the planned length, whatever tokens come."""
        prompt = self.prompts.make(planned, seed)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": planned.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        if planned.latency is not None:
            body["latency"] = planned.latency
        body = {name: value for name, value in {**body, **(self.extra or {})}.items() if value is not None}
        return self.client.post(CHAT if self.chat else COMPLETIONS, orjson.dumps(body))

    async def run(self, plan: Sequence[Planned], concurrency: int | None, seed: str, on_end: Callable[[], None]) -> Run:
        """Send a plan, and read what came when all of it has come. Requests are made before the clock starts."""
        requests = {planned.index: self.request(planned, seed) for planned in plan}

        async def send(planned: Planned) -> Exchange:
            exchange = await self.client.send(requests[planned.index])
            on_end()
            return exchange

        async with MetricsWatch(self.client) as watch:
            started, cpu = time.perf_counter(), _cpu_seconds()
            exchanges = await drive(plan, concurrency, send)
            cpu = _cpu_seconds() - cpu
        records = tuple(
            read_answer(exchange, planned, started, planned.arrival if concurrency is None else None)
            for exchange, planned in zip(exchanges, plan, strict=True)
        )
        seconds = max((record.end for record in records), default=0.0)
        return Run(records, seconds, cpu, watch.gauges())


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def find_model(client: Client, url: str) -> str:
    """The first model that a server lists. BenchRefused if it lists none, or is none of these servers."""
    exchange = await client.send(client.get("/v1/models"))
    if exchange.broken is not None or exchange.status != 200:
        said = exchange.broken or f"HTTP {exchange.status} {exchange.body[:200].decode(errors='replace')}"
        raise BenchRefused(f"{url}/v1/models: {said}; is an OpenAI-compatible server there?")
    try:
        return str(orjson.loads(exchange.body)["data"][0]["id"])
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise BenchRefused(f"{url}/v1/models: no list of models: {exchange.body[:80]!r}") from error


async def choose_prompts(client: Client, model: str, vocab_size: int | None, chat: bool) -> Prompts:
    """Token ids where they can be had: all below `vocab_size`, or those that the server's tokenizer makes of words."""
    if chat:
        return TextPrompts()
    if vocab_size is not None:
        return IdPrompts(range(vocab_size))
    for field in ("prompt", "content"):  # as vLLM has it, as llama.cpp has it
        body = orjson.dumps({"model": model, field: " " + " ".join(WORDS), "add_special_tokens": False})
        exchange = await client.send(client.post("/tokenize", body))
        if exchange.broken is None and exchange.status == 200 and (ids := _token_ids(exchange.body)):
            return IdPrompts(sorted(set(ids)))
    return TextPrompts()


def _token_ids(body: bytes) -> list[int]:
    """None if that is not what a server has at /tokenize."""
    with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
        ids = orjson.loads(body)["tokens"]
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            return ids
    return []
