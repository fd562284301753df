"""Kernels that start before the one they follow has ended: where the GPU and the driver have it."""

import logging

from llmc.runtime.cuda.driver.driver import CudaError

REFUSED = ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE")  # what a driver says of an edge it does not know

_log = logging.getLogger(__name__)


class EarlyStart:
    """Whether graphs have programmatic edges. `allowed` of the device: compute capability 9.0 and later; a driver may
    refuse them all the same, which costs a microsecond or so for each launch, and nothing else."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed

    def give_up(self, error: CudaError) -> None:
        """From now on every kernel waits for the end of what it follows."""
        if self.allowed:
            _log.warning("kernels start one after the other: the driver refuses programmatic edges (%s)", error)
        self.allowed = False


class EdgeRefused(Exception):
    """The driver does not take a graph with programmatic edges. `error`: what it said."""

    def __init__(self, error: CudaError) -> None:
        super().__init__(str(error))
        self.error = error
