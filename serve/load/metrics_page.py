"""What a server's /metrics says while it is under load: vLLM's names, which llmc has too, and llama.cpp's."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from llmc.serve.load.connection import Client
from llmc.serve.load.records import Gauges

SECONDS = 1.0  # between two looks: a look costs the server milliseconds
KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio")
MEMORY = ("process_resident_memory_bytes",)
STEPS = ("llmc:steps_total", "vllm:iteration_tokens_total_count")


class MetricsWatch:
    """Looks at /metrics now and then while the block runs; what it saw is read afterwards."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pages: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> MetricsWatch:
        if await self._look():
            self._task = asyncio.ensure_future(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self._look()

    async def _look(self) -> bool:
        exchange = await self._client.send(self._client.get("/metrics"))
        there = exchange.broken is None and exchange.status == 200
        if there:
            self._pages.append(exchange.body)
        return there

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            await self._look()

    def gauges(self) -> Gauges:
        pages = [_samples(page.decode(errors="replace")) for page in self._pages]
        kv = [max(values) for page in pages if (values := _first(page, KV_USED))]
        memory = [sum(values) for page in pages if (values := _first(page, MEMORY))]
        steps = [sum(values) for page in pages if (values := _first(page, STEPS))]
        return Gauges(
            max(kv, default=None),
            int(max(memory)) if memory else None,
            round(steps[-1] - steps[0]) if len(steps) > 1 else None,
        )


def _samples(page: str) -> dict[str, list[float]]:
    """Values of each sample, whatever its labels: one, or one for each engine."""
    found: dict[str, list[float]] = {}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and name:
            with contextlib.suppress(ValueError):
                found.setdefault(name.partition("{")[0].strip(), []).append(float(value))
    return found


def _first(samples: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((samples[name] for name in names if name in samples), [])
