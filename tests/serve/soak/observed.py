"""A server seen from outside: its counters, and what its processes hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.serving import HANG, Served, served

SHARED_LABELS = ("model_name", "engine")


@dataclass(frozen=True)
class Held:
    """By a server and the child of its engines, each."""

    bytes: tuple[int, int]
    files: tuple[int, int]
    threads: tuple[int, int]


@dataclass
class Observed:
    """A server whose log is read as it comes."""

    one: Served
    log: list[str]

    @property
    def url(self) -> str:
        return self.one.url

    def metrics(self) -> dict[str, float]:
        """By name; counters with labels that differ as name{value}."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=HANG).text):
            for sample in family.samples:
                others = [value for name, value in sample.labels.items() if name not in SHARED_LABELS]
                found[sample.name + (f"{{{','.join(others)}}}" if others else "")] = sample.value
        return found

    async def idle(self) -> dict[str, float]:
        """Its counters once nothing runs and all that began has ended."""
        while True:
            found = await asyncio.to_thread(self.metrics)
            if is_idle(found):
                return found
            await asyncio.sleep(0.05)

    def held(self) -> Held:
        both = (self.one.process.pid, self.one.child)
        return Held(
            (resident(both[0]), resident(both[1])),
            (len(os.listdir(f"/proc/{both[0]}/fd")), len(os.listdir(f"/proc/{both[1]}/fd"))),
            (len(os.listdir(f"/proc/{both[0]}/task")), len(os.listdir(f"/proc/{both[1]}/task"))),
        )


def is_idle(found: dict[str, float]) -> bool:
    """R26: started = finished + cancelled + failed, for the server's requests and for the engine's samples."""
    ended = sum(found[f"llmc:engine_requests_{how}_total"] for how in ("finished", "cancelled", "failed"))
    answered = sum(found.get(f"llmc:requests_ended_total{{{how}}}", 0) for how in ("finished", "cancelled", "failed"))
    answered += found.get("llmc:requests_ended_total{refused}", 0)
    busy = found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"]
    started = found["llmc:engine_requests_started_total"], found["llmc:requests_started_total"]
    return busy == 0 and started == (ended, answered)


def free_blocks(found: dict[str, float]) -> float:
    """Those that no request holds: empty, or kept for a prefix until room is needed."""
    return found["llmc:kv_blocks_free"] + found["llmc:kv_blocks_cached"]


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def observed(
    engine: Path, *arguments: str, env: dict[str, str] | None = None, faults: bool = False
) -> Iterator[Observed]:
    """It has to leave in good order; with `faults` alone something may have gone wrong inside."""
    with served(engine, *arguments, env=env) as one:
        log: list[str] = []
        assert one.process.stderr is not None
        reading = Thread(target=log.extend, args=(one.process.stderr,))
        reading.start()
        try:
            yield Observed(one, log)
            one.process.terminate()
            assert one.process.wait(HANG) == 0, "".join(log)[-3000:]
        finally:
            one.process.kill()
            reading.join()
        wrong = [line for line in log if '"event":"fault"' in line or line.startswith("Traceback")]
        assert faults or not wrong, "".join(log)[-3000:]
