"""How much memory the runtime may take, and large buffers of it."""

import contextlib
import ctypes
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

from llmc.runtime.errors import NotEnoughMemory

HUGE_PAGE = 2 << 20


@dataclass
class Pool:
    """`num_bytes` of zeroed memory, aligned to a huge page and backed by huge pages where the system has
    them.
    """

    num_bytes: int
    _mapping: mmap.mmap = field(init=False, repr=False)
    address: int = field(init=False)

    def __post_init__(self) -> None:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._mapping = mmap.mmap(-1, self.num_bytes + HUGE_PAGE, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise NotEnoughMemory(f"cannot reserve {self.num_bytes} bytes for the KV pool: {error}") from error
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages: slower, not wrong
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.address = start + -start % HUGE_PAGE

    def close(self) -> None:
        self._mapping.close()


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that this process can still take: the kernel's estimate, or the container's limit if lower."""
    limits = [_meminfo_available(meminfo)]
    cgroup = Path("/sys/fs/cgroup")
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no cgroup v2 here
    return max(0, min(limits))


def _meminfo_available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores() -> int:
    """Cores this process may run on: affinity, and a container's CPU quota rounded up."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass  # no quota
    return cores
