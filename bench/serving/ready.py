"""How soon a server is there, and there again: python bench/serving/ready.py ENGINE

Seconds from the start of `llmc serve` to the first answer of /ready (the engine's files in the page cache); from the
kill -9 of its engines' process to the last stream's error, to /health's 503, and, with --restart, to /ready again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

COMMAND = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", "serve"]
STREAMS = 8
DEATH = (f"kill -9 to the error of {STREAMS} streams", "to 503 of /health", "to ready again")
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "stream": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    starts, deaths = [], []
    for _ in range(options.rounds + 1):  # the first one warms the page cache
        with serving(options.engine, options.threads) as (process, url, seconds):
            starts.append(seconds)
            deaths.append(asyncio.run(death(process.pid, url)))
    show("start to ready", starts[1:])
    for name, values in zip(DEATH, zip(*deaths, strict=True), strict=True):
        show(name, values)


def show(name: str, seconds: Sequence[float]) -> None:
    print(f"{name:36} {statistics.median(seconds):6.3f} s (median), {max(seconds):6.3f} s (slowest of {len(seconds)})")


@contextmanager
def serving(engine: Path, threads: int) -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    """A server, its address, and the seconds that it took to be ready."""
    began = time.perf_counter()
    words = [*COMMAND, f"m={engine}", "--port", "0", "--log-json", "--restart", "--threads", str(threads)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if (found := re.search(r'"event":"ready","url":"(.*?)"', line)) is not None:
                    httpx.get(f"{found.group(1)}/ready").raise_for_status()
                    yield process, found.group(1), time.perf_counter() - began
                    break
        finally:
            process.kill()


async def death(server: int, url: str) -> tuple[float, float, float]:
    """Seconds from the death of the engines to each of the three."""
    child = int(Path(f"/proc/{server}/task/{server}/children").read_text().split()[0])
    streaming = asyncio.Semaphore(0)

    async def stream() -> float:
        async with client.stream("POST", "/v1/completions", json=LONG) as response:
            streaming.release()
            last = [line async for line in response.aiter_lines() if line][-1]
            assert '"error"' in last, last
            return time.perf_counter()

    async def until(path: str, status: int) -> float:
        while (await client.get(path)).status_code != status:
            await asyncio.sleep(0.002)
        return time.perf_counter()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
        for _ in streams:
            await streaming.acquire()
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        os.kill(child, signal.SIGKILL)
        unhealthy = await until("/health", 503)
        again = await until("/ready", 200)
        return max(await asyncio.gather(*streams)) - began, unhealthy - began, again - began


if __name__ == "__main__":
    main()
