"""Pinned host memory for KV blocks of requests that were preempted, and how fast the device reaches it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.cuda.driver.context import Context
from llmc.runtime.cuda.driver.driver import call, driver
from llmc.runtime.cuda.memory.heap import Heap
from llmc.runtime.errors import NotEnoughMemory
from llmc.runtime.kv.swap import SwapSpace

_SHARE = 4  # of the bytes of the KV pools, one in so many is pinned where nobody says how many
_MOST = 1 << 30
_LEAST_MEASURED, _MOST_MEASURED = 1 << 20, 8 << 20  # bytes of the copy that shows the link's speed
_LIKELY_SPEED = 10e9  # bytes a second, where there is too little to measure


class HostBlocks:
    """Slots for blocks of every group, as many in proportion as its pool has; `asked`: bytes of them all, or None.

    Raises NotEnoughMemory if what is asked for is refused.
    """

    def __init__(self, heap: Heap, kv: KvLayout, num_blocks: Sequence[int], asked: int | None) -> None:
        sizes = [group.block_bytes for group in kv.groups]
        pools = sum(count * size for count, size in zip(num_blocks, sizes, strict=True))
        budget = min(pools // _SHARE, _MOST) if asked is None else asked
        slots = [count * budget // pools for count in num_blocks] if pools else []
        try:
            self._memory = [
                heap.pinned(count * size, "KV blocks in host memory") if count else None
                for count, size in zip(slots, sizes, strict=True)
            ]
        except NotEnoughMemory:
            if asked is not None:
                raise
            self._memory, slots = [None] * len(slots), [0] * len(slots)
        self.space = SwapSpace(tuple(slots), tuple(sizes), 1 / _LIKELY_SPEED)

    def address(self, group: int, slot: int) -> int:
        """In host memory."""
        memory = self._memory[group]
        assert memory is not None, "a slot of a group that has none"
        return int(memory.ctypes.data) + slot * self.space.slot_bytes[group]

    def measure(self, context: Context, address: int, num_bytes: int) -> None:
        """How fast the device reaches the slots, by a copy from an address of it, if it is long enough to tell."""
        memory = max((one for one in self._memory if one is not None), key=len, default=np.zeros(0, np.uint8))
        num_bytes = min(len(memory), num_bytes, _MOST_MEASURED)
        if num_bytes < _LEAST_MEASURED:
            return
        seconds = float("inf")
        for _ in range(2):
            began = time.perf_counter()
            call(driver().cuMemcpyDtoHAsync, memory.ctypes.data, address, num_bytes, context.stream)
            context.synchronize()
            seconds = min(seconds, time.perf_counter() - began)
        self.space = replace(self.space, seconds_per_byte=seconds / num_bytes)
