"""Threads that all CPU engines of a process run their steps on, one at a time."""

import ctypes
import os
from types import TracebackType

from llmc.runtime.errors import InvalidParameter, NotEnoughMemory


class SharedThreads:
    """Made by the library of the first engine that asks for them; close it after the engines."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._pool: int | None = None
        self._count = 0

    def of(self, library: ctypes.CDLL, count: int) -> int | None:
        """The pool's address for an engine that wants so many; None if its ABI is older than such pools.

        Raises InvalidParameter for another number than the first engine's, NotEnoughMemory if they are refused.
        """
        if not hasattr(library, "llmc_pool_create"):
            return None
        if self._pool is None:
            self._pool, self._library, self._count = library.llmc_pool_create(count), library, count
            if not self._pool:
                raise NotEnoughMemory(
                    f"{count} threads or (for an AMX target) the kernel's permission for tile registers were refused"
                )
        if count != self._count:
            raise InvalidParameter(f"engines that share threads use equally many, got {count} and {self._count}")
        return self._pool

    def keep_caller(self) -> None:
        """The calling thread, which runs the steps, keeps to the CPU that the others leave to it, as they keep to
        theirs (templates/cpu/threads.h). For a process that does nothing else."""
        usable = sorted(os.sched_getaffinity(0))
        if self._pool is not None and len(usable) == self._count:
            os.sched_setaffinity(0, usable[:1])

    def close(self) -> None:
        """Closing again changes nothing."""
        pool, self._pool = self._pool, None
        if pool and self._library is not None:
            self._library.llmc_pool_destroy(pool)

    def __enter__(self) -> "SharedThreads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
