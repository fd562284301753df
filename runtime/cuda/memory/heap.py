"""Memory of the device, and pinned memory of the host: allocated one by one, freed together."""

import contextlib
import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.errors import NotEnoughMemory


class Heap:
    """What one engine holds. Freeing is for when nothing runs any more."""

    def __init__(self) -> None:
        self._cu = driver()
        self._device: list[Any] = []
        self._pinned: list[Any] = []

    def device(self, num_bytes: int, what: str) -> int:
        """The address of so many bytes (at least one) of device memory, 256-byte aligned. Raises NotEnoughMemory."""
        try:
            pointer = call(self._cu.cuMemAlloc, max(num_bytes, 1))
        except CudaError as error:
            free, _ = call(self._cu.cuMemGetInfo)
            raise NotEnoughMemory(
                f"{what}: {num_bytes} bytes of device memory were refused, {free} are free ({error})"
            ) from error
        self._device.append(pointer)
        return int(pointer)

    def pinned(self, num_bytes: int, what: str) -> NDArray[np.uint8]:
        """So many bytes of host memory that the device copies from and to by itself; valid until `free`."""
        try:
            pointer = call(self._cu.cuMemHostAlloc, max(num_bytes, 1), 0)
        except CudaError as error:
            raise NotEnoughMemory(f"{what}: {num_bytes} bytes of pinned memory were refused ({error})") from error
        self._pinned.append(pointer)
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(int(pointer)))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give one piece of pinned memory back early; no copy may be under way."""
        address = memory.ctypes.data
        (pointer,) = (p for p in self._pinned if int(p) == address)
        self._pinned.remove(pointer)
        call(self._cu.cuMemFreeHost, pointer)

    def free(self) -> None:
        """Give everything back, the last allocation first. A broken context gives nothing back; it ends with it."""
        for function, pointers in ((self._cu.cuMemFree, self._device), (self._cu.cuMemFreeHost, self._pinned)):
            while pointers:
                with contextlib.suppress(CudaError):
                    call(function, pointers.pop())
