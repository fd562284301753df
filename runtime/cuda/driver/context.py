"""The device's context and the one stream of an engine."""

import contextlib
from collections.abc import Iterator
from typing import Any

from llmc.runtime.cuda.driver.driver import CudaError, call, driver

FIRST_PROGRAMMATIC = 9  # compute capability, major: kernels that start before their predecessor has ended


class Context:
    """Device 0 (CUDA_VISIBLE_DEVICES decides which that is): its primary context, retained, and a stream.

    Raises CudaError.
    """

    def __init__(self) -> None:
        self._cu = driver()
        call(self._cu.cuInit, 0)
        self._device = call(self._cu.cuDeviceGet, 0)
        self._handle = call(self._cu.cuDevicePrimaryCtxRetain, self._device)
        self.stream: Any = None
        try:
            with self.current():
                self.stream = call(self._cu.cuStreamCreate, self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The context is this thread's current one meanwhile, and afterwards the one that was before: a caller's own,
        another library's, another engine's, or none. Raises CudaError."""
        call(self._cu.cuCtxPushCurrent, self._handle)
        try:
            yield
        finally:
            with contextlib.suppress(CudaError):  # it may speak of a kernel's fault, and has popped all the same
                call(self._cu.cuCtxPopCurrent)

    @property
    def programmatic(self) -> bool:
        attribute = self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        return int(call(self._cu.cuDeviceGetAttribute, attribute, self._device)) >= FIRST_PROGRAMMATIC

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        free, total = call(self._cu.cuMemGetInfo)
        return int(free), int(total)

    def synchronize(self) -> None:
        """Wait until the stream has ended. Raises CudaError, also for what kernels did."""
        call(self._cu.cuStreamSynchronize, self.stream)

    def close(self) -> None:
        """Let go, where it is not current; closing again changes nothing."""
        if self._handle is None:
            return
        with contextlib.suppress(CudaError), self.current():
            if self.stream is not None:
                call(self._cu.cuStreamDestroy, self.stream)
        self._handle = None
        with contextlib.suppress(CudaError):
            call(self._cu.cuDevicePrimaryCtxRelease, self._device)
