"""The threads that compute in an engine's process: each on a CPU of its own, where there are as many as CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmc.runtime import EngineProcess
from llmc.runtime.step.limits import LoadOptions
from tests.e2e.engines import Engines
from tests.runtime.process.serving import run

USABLE = os.sched_getaffinity(0)


def kept(pid: int) -> list[int]:
    """CPUs to which a thread of the process keeps."""
    sets = [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]
    return sorted(cpu for cpus in sets if len(cpus) == 1 for cpu in cpus)


@pytest.mark.skipif(len(USABLE) < 2, reason="one CPU: nothing to choose")
@pytest.mark.parametrize("threads", [len(USABLE), len(USABLE) - 1, len(USABLE) + 1])
def test_each_keeps_to_its_own_if_there_is_one_for_each(engines: Engines, speaking: Path, threads: int) -> None:
    folder = engines.engine(speaking)

    async def work() -> None:
        async with await EngineProcess.start({"m": folder}, LoadOptions(threads=threads)) as process:
            assert kept(process.pid) == (sorted(USABLE) if threads == len(USABLE) else [])

    run(work)
    assert os.sched_getaffinity(0) == USABLE
