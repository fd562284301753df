"""The server that `llmc bench` measures: one that runs somewhere, or `llmc serve` of an engine, started for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson
import uvloop

from llmc.runtime.artifact.artifact import read_manifest
from llmc.serve.load.connection import Client
from llmc.serve.load.options import BenchOptions, LoadArguments
from llmc.serve.load.plan import Planned
from llmc.serve.load.prompts import IdPrompts
from llmc.serve.load.records import Run
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.report import Subject
from llmc.serve.load.server import ServerTarget, choose_prompts, find_model
from llmc.serve.load.started_server import free_port, peak_memory, started


@dataclass(frozen=True)
class RunningServer:
    """A server as a target of a campaign. `pid`: of one that runs here; its memory is then read from the system."""

    target: ServerTarget
    runner: asyncio.Runner
    version: str
    pid: int | None = None

    @property
    def subject(self) -> Subject:
        prompts = "token ids" if isinstance(self.target.prompts, IdPrompts) else "text"
        return Subject(None, self.target.model, f"{self.target.url} ({self.version})", prompts)

    def run(self, plan: Sequence[Planned], concurrency: int | None, seed: str, on_end: Callable[[], None]) -> Run:
        run = self.runner.run(self.target.run(plan, concurrency, seed, on_end))
        peak = peak_memory(self.pid) if self.pid is not None else None
        return replace(run, gauges=replace(run.gauges, memory_bytes=peak)) if peak is not None else run


@contextmanager
def serving(options: BenchOptions) -> Iterator[RunningServer]:
    """Connected to --url, or to a server of the engine that ends with the block."""
    if options.url is not None:
        with connected(options, options.url) as server:
            yield server
        return
    assert options.engine is not None
    tokens = read_manifest(options.engine).model.num_valid_tokens
    port = free_port()
    with started(serve_command(options.engine, port, options.load), port) as process:
        asked = replace(options, vocab_size=options.vocab_size or tokens)
        with connected(asked, process.url, process.pid) as server:
            yield server


@contextmanager
def connected(options: BenchOptions, url: str, pid: int | None = None) -> Iterator[RunningServer]:
    """A client of its own event loop for a server, which is asked what it is."""
    client = Client(url, options.api_key, options.timeout)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            model = options.model or runner.run(find_model(client, url))
            prompts = runner.run(choose_prompts(client, model, options.vocab_size, options.chat))
            target = ServerTarget(client, url, model, prompts, options.chat, _extra(options.extra_body))
            yield RunningServer(target, runner, runner.run(_version(client)), pid)
        finally:
            runner.run(client.close())


def serve_command(engine: Path, port: int, load: LoadArguments) -> list[str]:
    """`llmc serve` of this environment."""
    given = [(name, value) for name, value in asdict(load).items() if value is not None]
    options = [word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value))]
    program = str(Path(sys.executable).with_name("llmc"))
    return [program, "serve", str(engine), "--host", "127.0.0.1", "--port", str(port), *options]


async def _version(client: Client) -> str:
    """What the server says of itself: at /version, as vLLM and llmc do, or in the head of its answer."""
    exchange = await client.send(client.get("/version"))
    if exchange.broken is None and exchange.status == 200:
        try:
            return " ".join(f"{name} {value}" for name, value in orjson.loads(exchange.body).items())
        except (orjson.JSONDecodeError, AttributeError):
            pass
    return exchange.server or "no version"


def _extra(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BenchRefused(f"--extra-body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BenchRefused("--extra-body is a JSON object")
    return found
