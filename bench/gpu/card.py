"""A GPU under the interface that tests of kernels use for the emulator: the driver's C API and nothing else.

The same calls reach the emulated driver where LD_LIBRARY_PATH names its folder. There every cubin needs a twin in the
folder LLMC_EMU_TWINS, which `CardLab` makes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from llmc.codegen.cuda.kernel import KernelParams, render
from llmc.codegen.cuda.target.capabilities import TARGETS, CudaTarget
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, compile_cubin, cubin_key
from llmc.emulator import pairs
from llmc.emulator.build import build_twin
from llmc.emulator.session import CudaError, Emulator, Kernel, Schedule
from tests.cuda.harness import TOUCH, Lab

_MAJOR, _MINOR, _SMS, _L2 = 75, 76, 16, 38  # CU_DEVICE_ATTRIBUTE_...
BY_CAPABILITY = {target.capability: target for target in TARGETS.values()}  # the target whose cubins a card runs


class Unsupported(RuntimeError):
    """A card that no target of ours is for."""


class Card(Emulator):
    """The first GPU of this process. Launches are as the emulator's; errors are CUDA's."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self.call("cuCtxSetCurrent", context)
        capability = (self.attribute(_MAJOR), self.attribute(_MINOR))
        if capability not in BY_CAPABILITY:
            known = ", ".join(f"{major}.{minor}" for major, minor in BY_CAPABILITY)
            raise Unsupported(f"{self.name()} has compute capability {capability}, kernels are built for {known}")
        self.target: CudaTarget = BY_CAPABILITY[capability]
        self.sms, self.l2_bytes = self.attribute(_SMS), self.attribute(_L2)

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(0))
        return value.value

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, ctypes.c_int(256), ctypes.c_int(0))
        return text.value.decode()

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def driver_version(self) -> int:
        value = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def call(self, function: str, *args: object) -> None:
        code = getattr(self._lib, function)(*args)
        if code:
            name, text = ctypes.c_char_p(), ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(name))
            self._lib.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError((name.value or str(code).encode()).decode(), f"{function}: {(text.value or b'').decode()}")

    def load(self, cubin: bytes, name: str) -> Kernel:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return Kernel(self, function, name)

    def write(self, pointer: int, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        self.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(pointer),
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(values.nbytes),
        )

    # A GPU has one schedule, and an error ends its context.
    def reset(self) -> None:
        pass

    def set_schedule(self, schedule: Schedule, workers: int = 0) -> None:
        pass

    def set_checked(self, on: bool) -> None:
        pass


@cache
def _compilers() -> ProcessPoolExecutor:
    """A process without the emulator: NVRTC looks for a libcuda.so.1 of its own and crashes on the emulated one."""
    os.environ.pop("LD_LIBRARY_PATH", None)  # of what is started from here on
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def cubin_of(source: str, arch: str) -> bytes:
    return compile_cubin(source, arch).cubin


def cubin_path(folder: Path, source: str, arch: str) -> Path:
    """Where prepare.py puts the cubin of a source: by its content, that of every header, and NVRTC's version."""
    return folder / arch / f"{cubin_key(source, arch, 'kernel.cu')}.cubin"


@dataclass
class CardLab(Lab):
    """Tests' Lab on a card: kernels are cubins of its target, prepared ones where there are such (`cubins`), else made
    by NVRTC; `compiled` counts those."""

    emulator: Card = field(default_factory=Card)  # the name that runners use
    checked: bool = False
    cubins: Path | None = None
    compiled: int = 0

    def kernel_of(self, source: str, name: str = "kernel") -> Kernel:
        """A kernel of a source, compiled once."""
        key = (source, name, False, "")
        if key not in self._kernels:
            cubin = self._cubin(source, self.emulator.target.arch)
            if twins := os.environ.get("LLMC_EMU_TWINS"):
                pairs.install(cubin, build_twin(source, [TEMPLATES], checked=False), Path(twins), checked=False)
            self._kernels[key] = self.emulator.load(cubin, name)
        return self._kernels[key]

    def _cubin(self, source: str, arch: str) -> bytes:
        if self.cubins is not None and (path := cubin_path(self.cubins, source, arch)).is_file():
            return path.read_bytes()
        self.compiled += 1
        if os.environ.get("LLMC_EMU_TWINS"):
            return _compilers().submit(cubin_of, source, arch).result()
        return cubin_of(source, arch)

    def kernel(self, params: KernelParams, suffix: str = "") -> Kernel:
        return self.kernel_of(render(params, "kernel"), "kernel" + suffix)

    def _touch(self) -> Kernel:
        return self.kernel_of(TOUCH, "touch")

    def release(self) -> None:
        """Frees every array made since the last release."""
        self.emulator.call("cuCtxSynchronize")
        for a in self._arrays:
            a.free()
        self._arrays.clear()
        self._inputs.clear()


def events(card: Card) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    pair = (ctypes.c_void_p(), ctypes.c_void_p())
    for event in pair:
        card.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
    return pair


def elapsed_seconds(card: Card, pair: tuple[ctypes.c_void_p, ctypes.c_void_p]) -> float:
    """Between two recorded events, the second of which it waits for."""
    card.call("cuEventSynchronize", pair[1])
    milliseconds = ctypes.c_float()
    card.call("cuEventElapsedTime_v2", ctypes.byref(milliseconds), *pair)
    return milliseconds.value / 1e3


def record(card: Card, event: ctypes.c_void_p) -> None:
    card.call("cuEventRecord", event, ctypes.c_void_p(0))
