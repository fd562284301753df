"""A program with two streams, events and a graph; each of its orderings can be left out, one at a time.

x, y, z are device arrays of 64 floats. Stream A fills x; B adds x to y; A adds y to x; a diamond-shaped
graph on A then reads both; B adds its result and x to z; a copy brings z back through pinned memory; x, which is the
pool's, is freed in order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError, DeviceArray, Emulator, Mode, Schedule

SOURCE = """#include "device.cuh"
LLMC_KERNEL(64, 1) add(float* to, const float* from, float scale) { to[threadIdx.x] += from[threadIdx.x] * scale; }
LLMC_EXPORT(add)
LLMC_KERNEL(64, 1) fill(float* to, float value) { to[threadIdx.x] = value; }
LLMC_EXPORT(fill)
"""
# Events (record and wait make one ordering), graph edges, host waits.
ORDERINGS = (
    "event A->B",
    "event B->A",
    "event A->B again",
    "edge root-left",
    "edge root-right",
    "edge left-join",
    "edge right-join",
    "event graph->B",
    "wait before reading the copy",
    "event before the free",
)
SCHEDULES = (*THREE_SCHEDULES, *(Schedule(Mode.RANDOM, seed) for seed in (11, 12, 13)))


@dataclass
class Program:
    emulator: Emulator
    left_out: str | None = None
    streams: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(2):
            s = ctypes.c_void_p()
            self.emulator.call("cuStreamCreate", ctypes.byref(s), ctypes.c_uint(1))
            self.streams.append(s.value or 0)

    def order(self, name: str, before: int, after: int) -> None:
        """What stream `after` does next comes after all of stream `before`, unless it is left out."""
        event = ctypes.c_void_p()
        self.emulator.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        self.emulator.call("cuEventRecord", event, ctypes.c_void_p(self.streams[before]))
        if name != self.left_out:
            self.emulator.call("cuStreamWaitEvent", ctypes.c_void_p(self.streams[after]), event, ctypes.c_uint(0))

    def run(self) -> np.ndarray:
        e, (a, b) = self.emulator, self.streams
        twin = build_twin(SOURCE, [TEMPLATES], checked=True, name="two_streams.cu")
        add, fill = e.kernel(twin, "add"), e.kernel(twin, "fill")
        zeros = np.zeros(64, np.float32)
        y, z, left, right = (e.array(zeros) for _ in range(4))
        pointer, pinned = ctypes.c_uint64(), ctypes.c_void_p()
        e.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(256), ctypes.c_void_p(a))
        x = DeviceArray(e, pointer.value, (64,), np.float32)
        e.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(256), ctypes.c_uint(0))
        host = np.ctypeslib.as_array(ctypes.cast(pinned, ctypes.POINTER(ctypes.c_float)), (64,))
        try:
            fill((1,), 64, 0, x, 1.0, stream=a, wait=False)
            self.order("event A->B", 0, 1)
            add((1,), 64, 0, y, x, 2.0, stream=b, wait=False)
            self.order("event B->A", 1, 0)
            add((1,), 64, 0, x, y, 1.0, stream=a, wait=False)
            self.order("event A->B again", 0, 1)
            add((1,), 64, 0, z, x, 1.0, stream=b, wait=False)
            graph = e.graph()

            def after(*edges: tuple[str, int]) -> list[int]:
                return [node for name, node in edges if f"edge {name}" != self.left_out]

            root = graph.kernel([], add, (1,), 64, 0, x, y, 1.0)
            one = graph.kernel(after(("root-left", root)), add, (1,), 64, 0, left, x, 1.0)
            two = graph.kernel(after(("root-right", root)), add, (1,), 64, 0, right, x, 3.0)
            graph.kernel(after(("left-join", one), ("right-join", two)), add, (1,), 64, 0, left, right, 1.0)
            executable = graph.instantiate()
            self.order("", 1, 0)  # z is not the graph's; x is read by B above
            executable.launch(a)
            self.order("event graph->B", 0, 1)
            add((1,), 64, 0, z, left, 1.0, stream=b, wait=False)
            add((1,), 64, 0, z, x, 1.0, stream=b, wait=False)
            e.call(
                "cuMemcpyDtoHAsync_v2",
                pinned,
                ctypes.c_uint64(z.pointer),
                ctypes.c_size_t(256),
                ctypes.c_void_p(b),
            )
            self.order("event before the free", 1, 0)
            e.call("cuMemFreeAsync", pointer, ctypes.c_void_p(a))
            if self.left_out != "wait before reading the copy":
                e.call("cuStreamSynchronize", ctypes.c_void_p(b))
            result = host.copy()
            e.call("cuCtxSynchronize")
            return result
        finally:
            e.reset()
            e.call("cuMemFreeHost", pinned)


def expected() -> np.ndarray:
    x, y = 1.0, 2.0
    x += y
    z = x
    x += y
    return np.full(64, z + x + 3 * x + x, np.float32)


def verdict(emulator: Emulator, left_out: str | None, schedules: tuple[Schedule, ...]) -> Iterator[str]:
    """How each schedule catches the program with one ordering left out; "" when it does not."""
    for schedule in schedules:
        emulator.set_checked(True)
        emulator.set_schedule(schedule)
        try:
            result = Program(emulator, left_out).run()
        except CudaError as error:
            yield str(error)
        else:
            yield ("" if np.array_equal(result, expected()) else f"wrong result: {result[0]}, expected {expected()[0]}")
