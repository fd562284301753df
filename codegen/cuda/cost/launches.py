"""How long the blocks of one launch take on a GPU, from the grid and the block of the kernel that is launched.

Blocks go, in their order, to the multiprocessor that is free first. What a multiprocessor draws from memory depends on
how many bytes the blocks that live on it ask for at a time. A model (target/assumptions.py), not a measurement.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import Gpu

SM_MEMORY_BYTES = ASSUMED.sm_memory * ASSUMED.clock  # bytes per second that one multiprocessor draws from memory
SM_L2_BYTES = ASSUMED.sm_l2 * ASSUMED.clock
REGISTER_STEP = 8  # registers of a thread are allocated in steps of it


@dataclass(frozen=True)
class BlockWork:
    """Of one block: bytes from and to memory, bytes that L2 has or keeps, and seconds of its arithmetic on a
    multiprocessor of its own."""

    memory: float
    l2: float
    arithmetic: float


@dataclass(frozen=True)
class LaunchWork:
    """Runs of equal blocks in the order they start, without those that return at once. `asked`: bytes that a block asks
    for before it waits for any of them."""

    runs: tuple[tuple[int, BlockWork], ...]
    asked: float

    @property
    def blocks(self) -> int:
        return sum(count for count, _ in self.runs)


def resident(p: KernelParams, gpu: Gpu) -> int:
    """Blocks of a kernel that live on a multiprocessor at a time, if it takes the registers that its budget allows (of
    each block's shared memory 1 KiB is the system's)."""
    registers = -(-p.budget(gpu).max_registers // REGISTER_STEP) * REGISTER_STEP
    by_registers = gpu.regs_sm // (p.threads * registers)
    return max(1, min(gpu.blocks_sm, gpu.threads_sm // p.threads, gpu.smem_sm // (p.smem_bytes + 1024), by_registers))


def launch_seconds(work: LaunchWork, per_sm: int, gpu: Gpu) -> float:
    """From the first block's start to the last one's end; `per_sm` blocks live on a multiprocessor at a time."""
    if not work.blocks:
        return 0.0
    deep = min(-(-work.blocks // gpu.sms), per_sm) * work.asked
    memory = min(SM_MEMORY_BYTES, deep / ASSUMED.memory_latency)
    l2 = min(SM_L2_BYTES, deep / ASSUMED.l2_latency)
    times = [(count, max(b.memory / memory + b.l2 / l2, b.arithmetic)) for count, b in work.runs]
    moved = sum(count * b.memory for count, b in work.runs)
    return max(makespan(times, gpu.sms), moved / (gpu.bandwidth * ASSUMED.bandwidth))


def makespan(runs: Sequence[tuple[int, float]], sms: int) -> float:
    """When the last of these blocks ends; runs of (count, seconds) in the order they start."""
    if len(runs) == 1:
        ((count, seconds),) = runs
        return -(-count // sms) * seconds
    free = [0.0] * sms
    for count, seconds in runs:
        for _ in range(count):
            heapq.heapreplace(free, free[0] + seconds)
    return max(free)
