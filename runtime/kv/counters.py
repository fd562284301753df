"""What the block manager tells of itself."""

from dataclasses import dataclass
from enum import IntEnum


class BlockUse(IntEnum):
    """FREE of everything, CACHED (unused, its content can be found), HELD by one table, SHARED by several."""

    FREE = 0
    CACHED = 1
    HELD = 2
    SHARED = 3


@dataclass(frozen=True)
class PoolMap:
    """A KV group's pool: the use of each block, a byte of `BlockUse` each."""

    uses: bytes

    def count(self, use: BlockUse) -> int:
        return self.uses.count(use)


@dataclass
class CacheCounters:
    """Of the prefix cache, since the block manager was made; counted on.

    `hits` and `misses` are blocks of the sequences that were allocated with a prefix, found (wholly or in part) or not,
    in all groups alike. They are the operator's: of one tenant's they would tell another.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0  # blocks of any group
    copies: int = 0  # blocks copied because their ids go on differently
    tokens_saved: int = 0  # positions that were not computed
    swapped_out: int = 0  # blocks of those who were preempted, to host memory
    swapped_in: int = 0  # and from there
