"""Memory of the server and of the processes that it started, as Linux tells it."""

import os
from pathlib import Path


def resident_bytes() -> int:
    """Of this process and of its children; 0 where there is no /proc."""
    own = Path("/proc/self")
    try:
        told = [task.joinpath("children").read_text() for task in (own / "task").iterdir()]
    except OSError:
        return 0
    processes = [own, *(Path("/proc", child) for text in told for child in text.split())]
    return sum(_resident(process) for process in processes)


def _resident(process: Path) -> int:
    try:
        pages = int((process / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE")
