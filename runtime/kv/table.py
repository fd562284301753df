"""A sequence's blocks: what the block manager hands out, and what the device reads."""

import sys
from array import array

from llmc.runtime.kv.prefix import PrefixChain

NO_BLOCK = -1  # a table's entry once its block was given back: LLMC_NO_BLOCK of abi.h


class BlockTable:
    """A sequence's blocks by group, in order of position. Valid from `allocate` until `free`.

    An opaque handle: only the block manager and its cache change it. An entry is NO_BLOCK once it was given back, and
    may become another block of the same content when `computed` is told.
    """

    __slots__ = (
        "_begun",
        "_blocks",
        "_claims",
        "_computed",
        "_expected",
        "_first",
        "_keyed",
        "_live",
        "_next_key",
        "_prefix",
        "_promised",
        "_quiet_until",
        "_room",
        "_tail",
        "num_computed",
        "version",
    )

    def __init__(self, num_groups: int, prefix: PrefixChain | None = None) -> None:
        self.version = 0  # another one says that entries have changed
        self.num_computed = 0  # positions that were in the cache when it was allocated
        self._blocks = [array("i") for _ in range(num_groups)]
        self._first = [0] * num_groups  # entries before it are NO_BLOCK
        self._claims = [0] * num_groups  # blocks that it may hold at once until its promise is kept
        self._promised = 0  # positions
        self._computed = 0  # positions
        self._begun = 0  # positions that a step computes, or has computed
        self._room = 0  # positions that the blocks it holds reach to, in every group
        self._quiet_until = 0  # computing fewer positions than this gives no block back
        self._live = True
        self._prefix = prefix  # None: nothing of it is kept for others
        self._keyed = 0  # whole blocks that others can find
        self._next_key = sys.maxsize  # computing as many positions fills a block that others are to find
        self._expected = 0  # blocks that the ids known at first will fill
        self._tail: bytes | None = None  # the key behind which its next block comes, as the cache has it

    def block_ids(self, group: int) -> "array[int]":
        """Indices into the group's pool (int32), or NO_BLOCK; entry i holds positions i * block_tokens and up.

        Read only.
        """
        return self._blocks[group]

    def num_held(self, group: int) -> int:
        """Blocks of the group's pool that the table holds."""
        return len(self._blocks[group]) - self._first[group]
