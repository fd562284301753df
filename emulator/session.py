"""Launches twins from Python through the emulated driver, without cuda-python: for tests of kernels.

One emulator per process (the driver is initialised once). Arguments of a launch are DeviceArray
(pointer), int
(int32), float (float32), or bytes (passed by value, e.g. a tensor map).
"""

from __future__ import annotations

import ctypes
import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.emulator.build import Driver, build_driver
from llmc.emulator.devices import H100, Device, environment


class Mode(enum.IntEnum):
    """Order of threads, blocks and asynchronous work: late, early, or random from the seed."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2


@dataclass(frozen=True)
class Schedule:
    mode: Mode
    seed: int = 1


THREE_SCHEDULES = (Schedule(Mode.FORWARD), Schedule(Mode.REVERSE), Schedule(Mode.RANDOM, 7))


class CudaError(RuntimeError):
    """A driver call failed; the message holds CUDA's error name and the emulator's report."""

    def __init__(self, name: str, report: str) -> None:
        super().__init__(f"{name}: {report}")
        self.name = name
        self.report = report


class DeviceArray:
    """Device memory with numpy's shape and dtype; freed by `free()` or with the emulator's reset."""

    def __init__(self, emulator: Emulator, pointer: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._emulator = emulator
        self.pointer = pointer
        self.shape = shape
        self.dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        self._emulator.call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_uint64(self.pointer),
            ctypes.c_size_t(self.nbytes),
        )
        return out

    def free(self) -> None:
        self._emulator.call("cuMemFree_v2", ctypes.c_uint64(self.pointer))


Argument = DeviceArray | int | float | bytes


class _LaunchAttribute(ctypes.Structure):  # CUlaunchAttribute: id, padding, 64 bytes of value
    _fields_ = (
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _LaunchConfig(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "smem")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Kernel:
    def __init__(self, emulator: Emulator, handle: ctypes.c_void_p, name: str) -> None:
        self._emulator = emulator
        self._handle = handle
        self.name = name
        self.opt_in = True  # ask for the shared memory that a launch needs
        self._asked = 0

    def __call__(
        self,
        grid: tuple[int, ...],
        block: int,
        smem_bytes: int,
        *args: Argument,
        stream: int = 0,
        programmatic: bool = False,
        wait: bool = True,
    ) -> None:
        """Launches and waits. grid: up to three extents; block: threads. Raises CudaError.

        programmatic: as a programmatic dependent launch on the kernel before it in the stream."""
        emulator = self._emulator
        if smem_bytes > self._asked and self.opt_in:
            self._asked = smem_bytes
            emulator.call("cuFuncSetAttribute", self._handle, ctypes.c_int(8), ctypes.c_int(smem_bytes))
        holders = [_by_value(a) for a in args]
        params = (ctypes.c_void_p * max(1, len(holders)))(*[ctypes.addressof(h) for h in holders])
        g = [*grid, 1, 1][:3]
        attribute = _LaunchAttribute(id=6, value=1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        config = _LaunchConfig(*g, block, 1, 1, smem_bytes, stream, ctypes.pointer(attribute), int(programmatic))
        emulator.call("cuLaunchKernelEx", ctypes.byref(config), self._handle, params, None)
        if wait:
            emulator.call("cuCtxSynchronize")


def _by_value(a: Argument) -> ctypes.c_uint64 | ctypes.c_int32 | ctypes.c_float | ctypes.Array[ctypes.c_char]:
    match a:
        case DeviceArray():
            return ctypes.c_uint64(a.pointer)
        case bytes():
            return ctypes.create_string_buffer(a, len(a))
        case float():
            return ctypes.c_float(a)
        case int():
            return ctypes.c_int32(a)


class Emulator:
    """The driver in this process, on its first device."""

    def __init__(self, devices: Sequence[Device] = (H100,), driver: Driver | None = None) -> None:
        os.environ["LLMC_EMU_DEVICES"] = environment(list(devices))
        self._lib = ctypes.CDLL(str((driver or build_driver()).library))
        self._lib.llmcEmuReport.restype = ctypes.c_char_p
        self.call("cuInit", ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self.call("cuCtxSetCurrent", context)

    def call(self, function: str, *args: object) -> None:
        """One driver call by its exported name; raises CudaError when it fails."""
        code = getattr(self._lib, function)(*args)
        if code:
            name = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(name))
            report = (self._lib.llmcEmuReport() or b"").decode()
            raise CudaError((name.value or str(code).encode()).decode(), report)

    def reset(self) -> None:
        """Forgets a failed context's error."""
        self._lib.llmcEmuReset()

    def set_schedule(self, schedule: Schedule, workers: int = 0) -> None:
        self._lib.llmcEmuSetSchedule(
            ctypes.c_uint(schedule.mode), ctypes.c_uint64(schedule.seed), ctypes.c_uint(workers)
        )

    def set_checked(self, on: bool) -> None:
        """Whether copies take part in race detection (kernels do when their twin is a checked one)."""
        self._lib.llmcEmuSetChecked(ctypes.c_int(on))

    def kernel(self, twin: Path, name: str) -> Kernel:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("llmcEmuLoadTwin", ctypes.byref(module), str(twin).encode())
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return Kernel(self, function, name)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Fresh device memory: poisoned (NaN)."""
        pointer = ctypes.c_uint64()
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return DeviceArray(self, pointer.value, shape, dtype)

    def array(self, values: np.ndarray) -> DeviceArray:
        """Copies a numpy array to the device."""
        values = np.ascontiguousarray(values)
        out = self.empty(values.shape, values.dtype)
        self.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(out.pointer),
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(values.nbytes),
        )
        return out

    def tensor_map(self, array: DeviceArray, box: tuple[int, ...], swizzle: int, columns: int | None = None) -> bytes:
        """A tensor map over a row-major array of 1, 2 or 4-byte elements. box: rows first, as the shape;
        swizzle: span in bytes (0, 32, 64, 128); columns: of a row that count, where rows are padded.
        Returns the 128 bytes a kernel takes by value."""
        kind = {1: 0, 2: 9, 4: 7}[array.dtype.itemsize]  # UINT8, BFLOAT16, FLOAT32
        rank = len(array.shape)
        dims = array.shape[::-1]
        strides = [array.dtype.itemsize * int(np.prod(dims[: i + 1])) for i in range(rank - 1)]
        dims = (columns or dims[0], *dims[1:])
        raw = ctypes.create_string_buffer(192)
        start = -ctypes.addressof(raw) % 64
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(ctypes.addressof(raw) + start),
            ctypes.c_int(kind),
            ctypes.c_uint(rank),
            ctypes.c_void_p(array.pointer),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint * rank)(*box[::-1]),
            (ctypes.c_uint * rank)(*[1] * rank),
            ctypes.c_int(0),
            ctypes.c_int({0: 0, 32: 1, 64: 2, 128: 3}[swizzle]),
            ctypes.c_int(2),
            ctypes.c_int(0),
        )
        return raw.raw[start : start + 128]

    def graph(self) -> Graph:
        return Graph(self)


class Graph:
    """A graph under construction: kernel nodes and their dependencies."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._handle = ctypes.c_void_p()
        emulator.call("cuGraphCreate", ctypes.byref(self._handle), ctypes.c_uint(0))

    def kernel(
        self,
        after: Sequence[int],
        kernel: Kernel,
        grid: tuple[int, ...],
        block: int,
        smem_bytes: int,
        *args: Argument,
    ) -> int:
        """Adds a node that runs after the nodes `after`; returns its handle."""
        holders = [_by_value(a) for a in args]
        params = (ctypes.c_void_p * max(1, len(holders)))(*[ctypes.addressof(h) for h in holders])
        g = [*grid, 1, 1][:3]
        node = ctypes.c_void_p()
        node_params = _KernelNodeParams(
            kernel._handle, *g, block, 1, 1, smem_bytes, ctypes.cast(params, ctypes.c_void_p)
        )
        self._emulator.call(
            "cuGraphAddKernelNode_v2",
            ctypes.byref(node),
            self._handle,
            (ctypes.c_void_p * max(1, len(after)))(*after),
            ctypes.c_size_t(len(after)),
            ctypes.byref(node_params),
        )
        assert node.value is not None
        return node.value

    def instantiate(self) -> GraphExec:
        handle = ctypes.c_void_p()
        self._emulator.call("cuGraphInstantiateWithFlags", ctypes.byref(handle), self._handle, ctypes.c_ulonglong(0))
        return GraphExec(self._emulator, handle)


class GraphExec:
    def __init__(self, emulator: Emulator, handle: ctypes.c_void_p) -> None:
        self._emulator = emulator
        self._handle = handle

    def launch(self, stream: int = 0) -> None:
        """Queues the graph; nothing waits."""
        self._emulator.call("cuGraphLaunch", self._handle, ctypes.c_void_p(stream))


class _KernelNodeParams(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "smem")),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )
