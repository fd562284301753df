"""The blocks of one KV group: which are free, which hold what a later request may find, how many owners each has."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from llmc.runtime.kv.counters import BlockUse
from llmc.runtime.kv.retention import Retention
from llmc.runtime.kv.table import NO_BLOCK


@dataclass(eq=False, slots=True)
class CachedBlock:
    """One block of each group, with the keys and values of the same ids behind the same ids.

    `key` is None where it is partly filled. `ids` are big-endian int32, so that their order is that of the bytes.
    """

    index: int  # of the block in its sequence
    parent: bytes  # key of the block before, or the root
    key: bytes | None
    ids: bytes
    blocks: list[int]  # by group, NO_BLOCK where it is gone

    @property
    def whole(self) -> bool:
        """In every group."""
        return NO_BLOCK not in self.blocks


class Pool:
    """Every block is free, or cached and unused (nobody references it, and its content can be found), or referenced."""

    def __init__(self, retention: Retention, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, got {num_blocks}")
        self.retention = retention
        self.num_blocks = num_blocks
        # A stack, lowest id on top: allocation is deterministic, and recently freed (warm) blocks are used first.
        self.free = list(range(num_blocks - 1, -1, -1))
        self.unused: OrderedDict[int, None] = OrderedDict()  # the one to evict next is first
        self.cached: list[CachedBlock | None] = [None] * num_blocks
        self.references = [0] * num_blocks
        self.owed = 0  # free and unused blocks that are promised: the sum of claims less the sum of what tables hold
        # Where windows move on, each owner of a shared block will need one of its own in its place. All owners but one
        # have these set aside here; where blocks are kept to the end, sharing costs nothing.
        self.set_aside = 0

    @property
    def windowed(self) -> bool:
        return self.retention.window is not None

    @property
    def spare(self) -> int:
        """Blocks that nobody holds or was promised; what the cache still knows of them does not matter."""
        return len(self.free) + len(self.unused) - self.owed - self.set_aside

    def uses(self) -> bytes:
        """A `BlockUse` for each block."""
        by_owners = np.array([BlockUse.FREE, BlockUse.HELD, BlockUse.SHARED], np.uint8)
        uses = by_owners[np.minimum(self.references, 2)]
        uses[list(self.unused)] = BlockUse.CACHED
        return uses.tobytes()

    def take(self) -> int:
        """A free block; there must be one."""
        block = self.free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner of a cached block."""
        if self.references[block] == 0:
            del self.unused[block]
        else:
            self.set_aside += self.windowed
        self.references[block] += 1

    def give_back(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block]:
            self.set_aside -= self.windowed
        elif self.cached[block] is None:
            self.free.append(block)
        else:
            self.unused[block] = None

    def forget(self, block: int) -> None:
        """Its content can no longer be found."""
        self.cached[block] = None
        if self.references[block] == 0:
            del self.unused[block]
            self.free.append(block)
