"""An engine that says it is at work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmc.runtime.process.stats import CacheStats, EngineStats, PoolStats, RequestStats, StepStats
from tests.serve.scripted import ScriptedEngine

FREE, CACHED, HELD, SHARED = range(4)
REQUESTS = (
    RequestStats("aaaaaaaa1111", 0, "running", "interactive", 70, 5, 75, ((0, 1, 2, 3),)),
    RequestStats("aaaaaaaa1111", 1, "running", "interactive", 70, 6, 76, ((0, 1, 4, 5, 6),)),
    RequestStats("bbbbbbbb2222", 0, "waiting", "batch", 40_000, 0, 0, ()),
)
BLOCKS = bytes([SHARED, SHARED, HELD, HELD, HELD, HELD, HELD, FREE, CACHED, CACHED, *[FREE] * 30])


@dataclass(eq=False)
class LoadedEngine(ScriptedEngine):
    """Says that it is at work."""

    def stats(self) -> EngineStats:
        return replace(
            super().stats(),
            running=2,
            waiting=1,
            step=StepStats("prefill", 48, 2, 0.0123),
            kv=(PoolStats(40, 31, 2, 7, BLOCKS),),
            cache=CacheStats(30, 10, 0, 512),
            requests=REQUESTS,
        )
