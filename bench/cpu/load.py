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
    own: float  # this one, its children that have ended, and the server that it watches
    stolen: float

    @classmethod
    def now(cls, server: int | None = None) -> LoadWatch:
        """`server`: a process that runs now; it and its children are not others."""
        fields = [int(f) / _TICK for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, stolen = fields
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime + (_tree(server) if server else 0.0)
        return cls(time.perf_counter(), user + nice + system + irq + softirq, own, stolen)

    def until(self, end: LoadWatch) -> Load:
        wall = max(end.wall - self.wall, 1e-9)
        others = (end.busy - self.busy - (end.own - self.own)) / wall
        return Load(max(0.0, others), (end.stolen - self.stolen) / wall)


def _tree(pid: int) -> float:
    """CPU seconds of a process, its children that run, and those that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICK + sum(_tree(child) for child in children)
