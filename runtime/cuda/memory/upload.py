"""Weights from the mapped file to the device, through two pinned buffers: one is filled while the other is copied."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc.runtime.artifact.weights import Weights
from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.memory.heap import Heap
from llmc.runtime.errors import FileMismatch

PIECE_BYTES = 32 << 20  # of each pinned buffer: long copies, and little memory that cannot be swapped
ALIGNMENT = 128  # of tensors in the file, kept on the device


@dataclass(frozen=True)
class Run:
    """Bytes that lie one after the other both in the file's data section and on the device."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True)
class Placed:
    """Where tensors go on the device: offsets by name; `runs` cover them all, in order."""

    offsets: Mapping[str, int]
    runs: tuple[Run, ...]
    num_bytes: int


def place(weights: Weights, names: Iterable[str]) -> Placed:
    """The tensors of these names, one after the other. Raises FileMismatch for one that the file lacks."""
    wanted = set(names)
    missing = sorted(wanted - set(weights.spans))
    if missing:
        raise FileMismatch(f"{weights.path}: a plan wants {missing[0]!r}, which is not in it")
    offsets: dict[str, int] = {}
    runs: list[Run] = []
    size = 0
    for name in sorted(wanted, key=lambda name: weights.spans[name]):
        start, end = weights.spans[name]
        target = -(-size // ALIGNMENT) * ALIGNMENT
        offsets[name] = target
        size = target + end - start
        last = runs[-1] if runs else Run(start, target, 0)
        # a gap that is the same on both sides is copied too
        if start - last.source == target - last.target and start >= last.source + last.num_bytes:
            runs[-1:] = [Run(last.source, last.target, end - last.source)]
        else:
            runs.append(Run(start, target, end - start))
    return Placed(offsets, tuple(runs), size)


def upload(weights: Weights, placed: Placed, address: int, heap: Heap, stream: Any) -> None:
    """Copy to `address`; returns when all has arrived. Raises CudaError."""
    cu = driver()
    source = np.frombuffer(weights.view, dtype=np.uint8)[weights.data_offset :]
    size = min(PIECE_BYTES, placed.num_bytes)
    if not size:
        return
    buffers = [heap.pinned(size, "pinned buffers of weights") for _ in range(2)]
    events = [call(cu.cuEventCreate, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING) for _ in buffers]
    try:
        for number, piece in enumerate(_pieces(placed.runs, size)):
            buffer, event = buffers[number % 2], events[number % 2]
            call(cu.cuEventSynchronize, event)  # of an event that was never recorded: returns at once
            np.copyto(buffer[: piece.num_bytes], source[piece.source : piece.source + piece.num_bytes])
            call(cu.cuMemcpyHtoDAsync, address + piece.target, buffer.ctypes.data, piece.num_bytes, stream)
            call(cu.cuEventRecord, event, stream)
        call(cu.cuStreamSynchronize, stream)
        for buffer in buffers:
            heap.free_pinned(buffer)
    finally:
        del source  # an error's traceback must not keep the mapping from being closed
        for event in events:  # the heap frees the buffers, when the device has come to rest
            with contextlib.suppress(CudaError):
                call(cu.cuEventDestroy, event)


def _pieces(runs: Iterable[Run], size: int) -> Iterable[Run]:
    for run in runs:
        for at in range(0, run.num_bytes, size):
            yield Run(run.source + at, run.target + at, min(size, run.num_bytes - at))
