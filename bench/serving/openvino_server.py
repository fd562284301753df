"""An OpenAI-like server around OpenVINO GenAI's continuous-batching pipeline, whose wheel has none.

Runs in OpenVINO's own environment, which needs nothing else:
`python -c "from bench.serving.openvino_server import main; main()" MODEL PORT THREADS SEQUENCES`.
One thread, one loop: read what came, run a step, write what it brought. It knows
prompts of token ids and streams without text (nothing is detokenised), so what HTTP costs here flatters OpenVINO.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nServer: openvino\r\n"
CHUNKED = HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'


@dataclass
class Live:
    """A request under way. `handle`: the pipeline's."""

    handle: Any
    writer: asyncio.StreamWriter
    prompt_len: int
    max_tokens: int
    tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    """`pipeline`: a ContinuousBatchingPipeline, or what looks like one; `request` makes its arguments of a body."""

    def __init__(self, pipeline: Any, request: Any, pages: dict[bytes, dict[str, Any]]) -> None:
        self._pipeline = pipeline
        self._request = request
        self._pages = pages
        self._live: list[Live] = []
        self._work = asyncio.Event()
        self._count = 0

    async def run(self) -> None:
        while True:
            if not self._live:
                self._work.clear()
                await self._work.wait()
            self._pipeline.step()
            for live in list(self._live):
                self._deliver(live)
            await asyncio.sleep(0)  # requests that came meanwhile are read, answers that ended are closed
            await asyncio.sleep(0)

    def _deliver(self, live: Live) -> None:
        brought = 0
        while live.handle.can_read():
            brought += sum(len(output.generated_ids) for output in live.handle.read().values())
        if brought:
            live.tokens += brought
            _write(live.writer, TOKEN)
        if live.tokens >= live.max_tokens or live.writer.is_closing():
            self._live.remove(live)
            usage = {"prompt_tokens": live.prompt_len, "completion_tokens": live.tokens}
            counts = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
            _write(live.writer, LAST + counts + b"data: [DONE]\n\n")
            live.writer.write(b"0\r\n\r\n")
            live.ended.set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                if method == b"POST":
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    await self._complete(json.loads(await reader.readexactly(length)), writer)
                else:
                    page = json.dumps(self._pages.get(path)).encode()
                    status = HEAD if path in self._pages else b"HTTP/1.1 404 Not Found\r\n"
                    writer.write(status + b"Content-Length: %d\r\n\r\n" % len(page) + page)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self._count += 1
        handle = self._pipeline.add_request(self._count, *self._request(body))
        live = Live(handle, writer, len(body["prompt"]), body["max_tokens"])
        writer.write(CHUNKED)
        self._live.append(live)
        self._work.set()
        await live.ended.wait()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def serve(server: Server, port: int) -> None:
    await asyncio.start_server(server.connection, "127.0.0.1", port)
    await server.run()


def main() -> None:
    """As the recipe of the peers has it: chunks of at most 512 tokens, no prefix cache."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    model, port, threads, sequences = sys.argv[1], *map(int, sys.argv[2:5])
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB
    scheduler.max_num_seqs = sequences
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False

    def request(body: dict[str, Any]) -> tuple[Any, Any]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = body["max_tokens"], True, False
        return openvino.Tensor(np.array([body["prompt"]], dtype=np.int64)), config

    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    pages: dict[bytes, dict[str, Any]] = {
        b"/health": {},
        b"/version": {"openvino_genai": genai.__version__, "openvino": openvino.__version__},
        b"/v1/models": {"data": [{"id": model}]},
    }
    asyncio.run(serve(Server(pipeline, request, pages), port))
