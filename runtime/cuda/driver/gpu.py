"""The GPU of this machine, as far as choosing a target of an engine needs it. Nothing is allocated."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmc.runtime.artifact.manifest import TargetEntry
from llmc.runtime.cuda.driver.driver import INSTALL, CudaError, call, driver, text_of

MIN_CUDA = (13, 0)  # cubins made by CUDA 13.0 load on drivers that support it
MIN_DRIVER = "580.65"  # the first such driver (CUDA Toolkit release notes, table 3)
EMULATE = "`llmc run ENGINE --emulate` runs it without one"
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")


class NoGpu(Exception):
    """No GPU can be used here; the message says why, and what to do."""


@dataclass(frozen=True)
class Gpu:
    """Device 0 of the CUDA driver; which one that is, CUDA_VISIBLE_DEVICES decides."""

    name: str
    major: int
    minor: int

    def runs(self, arch: str) -> bool:
        """Whether cubins for `arch` load: a suffix asks for exactly that GPU, else any later minor will do."""
        found = _ARCH.fullmatch(arch)
        if found is None:
            return False
        major, minor = int(found[1]), int(found[2])
        if found[3]:
            return (major, minor) == (self.major, self.minor)
        return major == self.major and minor <= self.minor

    def is_exactly(self, arch: str) -> bool:
        return arch.rstrip("af") == f"sm_{self.major}{self.minor}"


def find_gpu() -> Gpu:
    """Raises NoGpu."""
    try:
        cu = driver()
    except ImportError:
        raise NoGpu(f"needs an NVIDIA GPU and cuda-python, which is not installed: {INSTALL}; {EMULATE}") from None
    try:
        call(cu.cuInit, 0)
        version = call(cu.cuDriverGetVersion)
        if version < MIN_CUDA[0] * 1000 + MIN_CUDA[1] * 10:
            raise NoGpu(
                f"needs a driver for CUDA {MIN_CUDA[0]}.{MIN_CUDA[1]} ({MIN_DRIVER} or newer), the driver here "
                f"goes to CUDA {version // 1000}.{version % 1000 // 10}; update it"
            )
        device = call(cu.cuDeviceGet, 0)
        attribute = cu.CUdevice_attribute
        name = text_of(call(cu.cuDeviceGetName, 128, device))
        major = call(cu.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = call(cu.cuDeviceGetAttribute, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    except CudaError as error:
        raise NoGpu(f"needs an NVIDIA GPU, and CUDA finds none here ({error}); {EMULATE}") from error
    except RuntimeError as error:  # what cuda-python raises where there is no libcuda.so.1
        raise NoGpu(f"needs an NVIDIA GPU, and this machine has no NVIDIA driver; {EMULATE}") from error
    return Gpu(name, major, minor)


def choose_cuda(targets: Sequence[TargetEntry]) -> tuple[list[TargetEntry], list[str]]:
    """Those of some CUDA targets that run here, compiled for this very GPU first, and why the others do not."""
    built = [f"built for {target.name} ({target.arch})" for target in targets]
    try:
        gpu = find_gpu()
    except NoGpu as error:
        return [], [f"{', '.join(built)}: {error}"]
    runnable = [target for target in targets if gpu.runs(target.arch)]
    runnable.sort(key=lambda target: not gpu.is_exactly(target.arch))
    reasons = [
        f"{words}, the GPU here is an {gpu.name} (compute capability {gpu.major}.{gpu.minor}); {EMULATE}"
        for words, target in zip(built, targets, strict=True)
        if target not in runnable
    ]
    return runnable, reasons
