"""Engines in a process of their own for tests: answers gathered, and what must be true when all is quiet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from llmc.runtime.process.async_engine import AsyncEngine
from llmc.runtime.process.engine_process import EngineProcess
from llmc.runtime.process.stats import EngineStats

T = TypeVar("T")
HANG = 20.0  # seconds: what takes longer than this is stuck


def run(work: Callable[[], Awaitable[T]]) -> T:
    """An asyncio test, which ends."""

    async def bounded() -> T:
        return await asyncio.wait_for(work(), HANG)

    return asyncio.run(bounded())


@asynccontextmanager
async def engine(folder: Path, **settings: Any) -> AsyncIterator[AsyncEngine]:
    """The only engine of a process, which must be quiet at the end."""
    async with await EngineProcess.start({"m": folder}, **settings) as process:
        yield process.engine
        await quiet(process.engine)


async def quiet(engine: AsyncEngine) -> EngineStats:
    """Nothing runs: all blocks are back, and every request that was queued has ended once."""
    await until(lambda: not engine.stats().requests and engine.stats().counters.started > 0 and _ended(engine))
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert all(pool.held == 0 for pool in stats.kv)
    return stats


def _ended(engine: AsyncEngine) -> bool:
    counts = engine.stats().counters
    return counts.started == sum(counts.finished.values()) + counts.cancelled + counts.failed


async def until(condition: Callable[[], bool]) -> None:
    """It comes true; a test that hangs is ended from outside."""
    while not condition():
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """A process that is not even a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def files() -> int:
    return len(os.listdir("/proc/self/fd"))
