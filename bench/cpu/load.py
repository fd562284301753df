"""How busy the rest of the machine was while something was measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """`others`: cores that other processes used; `stolen`: cores that the hypervisor gave to other guests."""

    others: float
    stolen: float


@dataclass(frozen=True)
class LoadWatch:
    """CPU seconds at one moment: `until` a later one gives the load between."""

    wall: float
    busy: float  # all processes
    own: float  # this one and its children that have ended
    stolen: float

    @classmethod
    def now(cls) -> LoadWatch:
        fields = [int(f) / _TICK for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, stolen = fields
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        return cls(time.perf_counter(), user + nice + system + irq + softirq, own, stolen)

    def until(self, end: LoadWatch) -> Load:
        wall = max(end.wall - self.wall, 1e-9)
        others = (end.busy - self.busy - (end.own - self.own)) / wall
        return Load(max(0.0, others), (end.stolen - self.stolen) / wall)
