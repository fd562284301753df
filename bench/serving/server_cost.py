"""What the server itself costs: its imports, and the Python of a streamed chunk between the engine and uvicorn.

python -m bench.serving.server_cost
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output, Timing
from llmc.runtime.step.params import SamplingParams
from tests.serve.asgi import Call, Client
from tests.serve.scripted import ScriptedEngine, ScriptedStream

CHUNKS = 4000
RUNTIME = "import llmc.runtime.process.engine_process, uvloop"
IMPORTS = {"llmc.serve and uvicorn": "import llmc.serve.service", "fastapi": "import fastapi"}
BODY = {"messages": [{"role": "user", "content": "x"}], "stream": True}


class _Fast(ScriptedStream):
    """Has its outputs ready."""

    async def __aiter__(self) -> AsyncIterator[Output]:
        for _ in range(CHUNKS):
            yield Output(" word", (5,), (), None)
        yield Output("", (5,), (), FinishReason.STOP)

    async def result(self) -> list[Completion]:
        return [Completion(3, (5,) * CHUNKS, "", FinishReason.STOP, None, 0, (), 0, Timing(0.1, 0.2))]


class _Engine(ScriptedEngine):
    async def submit(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **asked: Any
    ) -> ScriptedStream:
        return _Fast(self, "r", [5], params or self.sampling(), 1, 1, {})


class _Call(Call):
    async def _send(self, message: Mapping[str, Any]) -> None:
        pass


async def chunk_seconds() -> float:
    call = _Call(Client.of(_Engine()).app, "POST", "/v1/chat/completions", json.dumps(BODY).encode())
    began = time.process_time()
    await call.run()
    return (time.process_time() - began) / CHUNKS


def import_seconds(more: str) -> float:
    code = f"import time\n{RUNTIME}\nbegan = time.perf_counter()\n{more}\nprint(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    for what, more in IMPORTS.items():
        if more == "import fastapi" and importlib.util.find_spec("fastapi") is None:
            continue  # llmc does not need it: only to compare
        print(f"import {what}: {min(import_seconds(more) for _ in range(5)):.3f} s over the runtime's")
    cost = min(asyncio.run(chunk_seconds()) for _ in range(10))
    print(f"a streamed chunk: {cost * 1e6:.1f} us of Python in serve/")


if __name__ == "__main__":
    main()
