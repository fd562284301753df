"""The KV block manager: which blocks of the pool hold which positions of which sequence. Pure bookkeeping.

A sequence owns a `BlockTable`, an opaque handle: only this module changes it, and the device reads its ids.
Blocks are reference counted, so that a prefix can be shared; a block with more than one owner is full and
never written.
"""

from array import array


class BlockTable:
    """A sequence's blocks in order of position. Valid from `allocate` or `share` until `free`."""

    __slots__ = ("_blocks", "_live")

    def __init__(self, blocks: "array[int]") -> None:
        self._blocks = blocks
        self._live = True

    @property
    def block_ids(self) -> "array[int]":
        """Pool indices (int32); entry i holds positions i * block_tokens and up. Read only."""
        return self._blocks

    def __len__(self) -> int:
        return len(self._blocks)


class BlockManager:
    """Hands out `num_blocks` blocks of `block_tokens` positions."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(f"need at least one block of one token, got {num_blocks} of {block_tokens}")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        # A stack, lowest id on top: allocation is deterministic, and recently freed (warm) blocks are used
        # first.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._tables: set[BlockTable] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def capacity_tokens(self) -> int:
        """Positions of the whole pool."""
        return self.num_blocks * self.block_tokens

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def allocate(self, num_tokens: int) -> BlockTable | None:
        """Blocks for positions 0..num_tokens-1, or None (and nothing taken) if too few are free."""
        table = BlockTable(array("i"))
        if not self._grow(table, self.blocks_for(num_tokens)):
            return None
        self._tables.add(table)
        return table

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Make the table hold positions 0..num_tokens-1.

        False (and nothing taken) if too few blocks are free.
        """
        self._check_live(table)
        return self._grow(table, self.blocks_for(num_tokens) - len(table))

    def share(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A new table over the first `num_tokens` positions of another; they must fill whole blocks."""
        self._check_live(table)
        count, rest = divmod(num_tokens, self.block_tokens)
        if rest or count > len(table):
            raise ValueError(f"cannot share {num_tokens} tokens of {len(table)} blocks of {self.block_tokens}")
        shared = BlockTable(table.block_ids[:count])
        for block in shared.block_ids:
            self._references[block] += 1
        self._tables.add(shared)
        return shared

    def free(self, table: BlockTable) -> None:
        """Give up a table; blocks that nobody else holds become free."""
        self._check_live(table)
        self._tables.remove(table)
        for block in reversed(table.block_ids):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
        del table._blocks[:]
        table._live = False

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is free, or referenced as often as tables hold it."""
        held = [0] * self.num_blocks
        for table in self._tables:
            assert len(set(table.block_ids)) == len(table), "a table holds a block twice"
            for block in table.block_ids:
                held[block] += 1
        assert held == self._references, "reference counts disagree with the tables"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert sorted(self._free) == [b for b, count in enumerate(held) if count == 0], "a block is lost or both"

    def _grow(self, table: BlockTable, count: int) -> bool:
        if count > len(self._free):
            return False
        for _ in range(count):
            block = self._free.pop()
            self._references[block] = 1
            table._blocks.append(block)
        return True

    def _check_live(self, table: BlockTable) -> None:
        assert table._live, "a block table was used after it was freed"
