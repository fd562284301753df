"""The KV block manager: which blocks of the pools hold which positions of which sequence. Pure bookkeeping.

Every KV group (layers that keep the same positions) has a pool. A sequence owns a `BlockTable`, an opaque handle: only
this module changes it, and the device reads its ids. A sequence is first promised room for so many positions, in every
group or not at all; each step then takes the blocks it needs, which the promise keeps free for it, and gives back those
that no token still to be computed reads (`Retention`).

Blocks are reference counted, so that a prefix can be shared; a block with more than one owner is full and never
written.
"""

from array import array
from collections.abc import Sequence

from llmc.runtime.kv.retention import Retention

NO_BLOCK = -1  # a table's entry once its block was given back: LLMC_NO_BLOCK of abi.h


class BlockTable:
    """A sequence's blocks by group, in order of position. Valid from `allocate` or `share` until `free`."""

    __slots__ = ("_blocks", "_claims", "_computed", "_first", "_live", "_promised", "_quiet_until", "_room")

    def __init__(self, num_groups: int) -> None:
        self._blocks = [array("i") for _ in range(num_groups)]
        self._first = [0] * num_groups  # entries before it are NO_BLOCK
        self._claims = [0] * num_groups  # blocks that it may hold at once until its promise is kept
        self._promised = 0  # positions
        self._computed = 0  # positions
        self._room = 0  # positions that the blocks it holds reach to, in every group
        self._quiet_until = 0  # computing fewer positions than this gives no block back
        self._live = True

    def block_ids(self, group: int) -> "array[int]":
        """Indices into the group's pool (int32), or NO_BLOCK; entry i holds positions i * block_tokens and up.

        Read only.
        """
        return self._blocks[group]

    def num_held(self, group: int) -> int:
        """Blocks of the group's pool that the table holds."""
        return len(self._blocks[group]) - self._first[group]


class _Pool:
    """The blocks of one group."""

    def __init__(self, retention: Retention, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, got {num_blocks}")
        self.retention = retention
        self.num_blocks = num_blocks
        # A stack, lowest id on top: allocation is deterministic, and recently freed (warm) blocks are used first.
        self.free = list(range(num_blocks - 1, -1, -1))
        self.references = [0] * num_blocks
        self.owed = 0  # free blocks that are promised: the sum of claims less the sum of what tables hold
        # Where windows move on, each owner of a shared block will need one of its own in its place. All owners but one
        # have these set aside here; where blocks are kept to the end, sharing costs nothing.
        self.set_aside = 0

    @property
    def windowed(self) -> bool:
        return self.retention.window is not None

    @property
    def spare(self) -> int:
        """Free blocks that are promised to nobody."""
        return len(self.free) - self.owed - self.set_aside

    def take(self) -> int:
        block = self.free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        self.references[block] += 1
        self.set_aside += self.windowed

    def give_back(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free.append(block)
        else:
            self.set_aside -= self.windowed


class BlockManager:
    """Hands out the blocks of one pool for each of `retentions`, with `num_blocks` blocks."""

    def __init__(self, retentions: Sequence[Retention], num_blocks: Sequence[int]) -> None:
        if len({r.block_tokens for r in retentions}) > 1:
            raise ValueError(f"the blocks of all groups hold equally many tokens, got {list(retentions)}")
        self._sizes = list(zip(retentions, num_blocks, strict=True))
        self.begin_anew()

    def begin_anew(self) -> None:
        """Every block is free and no table is live, whatever an interrupted operation has left."""
        self._pools = [_Pool(retention, count) for retention, count in self._sizes]
        self._windowed = [(g, pool) for g, pool in enumerate(self._pools) if pool.windowed]
        self._tables: set[BlockTable] = set()

    @property
    def num_free(self) -> int:
        """Blocks of all pools that nobody holds or was promised."""
        return sum(pool.spare for pool in self._pools)

    @property
    def tables(self) -> frozenset[BlockTable]:
        """All that are live."""
        return frozenset(self._tables)

    def longest(self, limit: int) -> int:
        """The longest sequence, up to `limit`, that the empty pools hold."""
        return min((pool.retention.longest(pool.num_blocks, limit) for pool in self._pools), default=limit)

    def shortage(self, num_tokens: int, *, now: bool = False) -> str | None:
        """Figures of a pool that cannot hold a sequence of `num_tokens`: ever, or beside what it holds `now`."""
        for pool in self._pools:
            needed, tokens = pool.retention.most_blocks(0, num_tokens), pool.retention.block_tokens
            if needed > (pool.spare if now else pool.num_blocks):
                has = f"{pool.spare} of its {pool.num_blocks} blocks free" if now else f"{pool.num_blocks} of {tokens}"
                window = f" of the window {pool.retention.window}" if pool.windowed else ""
                return f"{needed} KV blocks; the pool{window} has {has}" + ("" if now else " tokens")
        return None

    def allocate(self, num_tokens: int) -> BlockTable | None:
        """Room for positions 0..num_tokens-1, or None (and nothing promised) if a pool has too few blocks to spare."""
        table = BlockTable(len(self._pools))
        if not self.extend(table, num_tokens):
            return None
        self._tables.add(table)
        return table

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Room for positions 0..num_tokens-1. False (and nothing promised) if a pool has too few blocks to spare."""
        self._check_live(table)
        if num_tokens <= table._promised:
            return True
        if num_tokens <= table._room and num_tokens == table._computed + 1:  # most steps of decoding: no claim changes
            table._promised = num_tokens
            return True
        claims = [pool.retention.most_blocks(table._computed, num_tokens) for pool in self._pools]
        more = [claim - before for claim, before in zip(claims, table._claims, strict=True)]
        if any(count > pool.spare for count, pool in zip(more, self._pools, strict=True)):
            return False
        for count, pool in zip(more, self._pools, strict=True):
            pool.owed += count
        table._claims, table._promised = claims, num_tokens
        return True

    def take(self, table: BlockTable, num_tokens: int) -> None:
        """Hold blocks for positions up to num_tokens - 1, which were promised, before a step computes them."""
        self._check_live(table)
        assert num_tokens <= table._promised, "blocks are taken that were not promised"
        if num_tokens <= table._room:
            return
        for group, pool in enumerate(self._pools):
            blocks = table._blocks[group]
            assert num_tokens - table._computed <= pool.retention.step_tokens, "a step has more tokens than was said"
            for _ in range(pool.retention.blocks_for(num_tokens) - len(blocks)):
                blocks.append(pool.take())
                pool.owed -= 1
            table._room = len(blocks) * pool.retention.block_tokens

    def computed(self, table: BlockTable, num_tokens: int) -> None:
        """Positions 0..num_tokens-1 are in the cache: what no later token reads is given back."""
        self._check_live(table)
        quiet = num_tokens < table._quiet_until and table._promised <= table._computed + 1
        table._computed = num_tokens
        if quiet or not self._windowed:  # most steps of decoding: no claim changes
            return
        for group, pool in self._windowed:
            blocks, first = table._blocks[group], pool.retention.first_kept(num_tokens)
            for index in range(table._first[group], first):
                pool.give_back(blocks[index])
                blocks[index] = NO_BLOCK
            claim = pool.retention.most_blocks(num_tokens, table._promised)
            pool.owed += first - table._first[group] + claim - table._claims[group]
            table._first[group], table._claims[group] = first, claim
        table._quiet_until = min(pool.retention.next_release(num_tokens) for _, pool in self._windowed)

    def share(self, table: BlockTable, num_tokens: int) -> BlockTable | None:
        """A new table over the first `num_tokens` positions of another, which must be computed and fill whole blocks.

        None (and nothing shared) if a group has given back a block that the next token reads, or has too few blocks to
        spare for two windows that move on apart.
        """
        self._check_live(table)
        if num_tokens > table._computed or any(num_tokens % p.retention.block_tokens for p in self._pools):
            raise ValueError(f"cannot share {num_tokens} tokens of {table._computed}: whole computed blocks only")
        shared = BlockTable(len(self._pools))
        shared._promised = shared._computed = num_tokens
        for group, pool in enumerate(self._pools):
            first, end = pool.retention.first_kept(num_tokens), pool.retention.blocks_for(num_tokens)
            shared._first[group] = first
            shared._claims[group] = pool.retention.most_blocks(num_tokens, num_tokens)
            kept = table._blocks[group][first:end]
            # what both will need once their windows have moved on; blocks kept to the end are simply there
            more = shared._claims[group] if pool.windowed else 0
            if first < table._first[group] or more > pool.spare:
                return None
            shared._blocks[group] = array("i", [NO_BLOCK] * first) + kept
            shared._room = num_tokens
        for group, pool in enumerate(self._pools):
            for block in shared._blocks[group][shared._first[group] :]:
                pool.share(block)
            pool.owed += shared._claims[group] - shared.num_held(group)
        self._tables.add(shared)
        return shared

    def free(self, table: BlockTable) -> None:
        """Give up a table; blocks that nobody else holds become free."""
        self._check_live(table)
        self._tables.remove(table)
        for group, pool in enumerate(self._pools):
            pool.owed -= table._claims[group] - table.num_held(group)
            blocks = table._blocks[group]
            for block in reversed(blocks[table._first[group] :]):
                pool.give_back(block)
            del blocks[:]
        table._live = False

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is free, or referenced as often as tables hold it, and every promise
        can be kept."""
        for group, pool in enumerate(self._pools):
            held, owed = [0] * pool.num_blocks, 0
            for table in self._tables:
                blocks, first = table._blocks[group], table._first[group]
                assert all(block == NO_BLOCK for block in blocks[:first]), "an entry behind the window has a block"
                assert len(set(blocks[first:])) == len(blocks) - first, "a table holds a block twice"
                for block in blocks[first:]:
                    held[block] += 1
                claim = pool.retention.most_blocks(table._computed, table._promised)
                assert table.num_held(group) <= table._claims[group] == claim, "a claim is not what the promise needs"
                owed += table._claims[group] - table.num_held(group)
            assert held == pool.references, "reference counts disagree with the tables"
            assert len(set(pool.free)) == len(pool.free), "a block is free twice"
            assert sorted(pool.free) == [b for b, n in enumerate(held) if n == 0], "a block is lost or both"
            assert owed == pool.owed, "what is owed disagrees with the claims"
            shared = sum(max(0, count - 1) for count in held)
            assert pool.set_aside == (shared if pool.windowed else 0), "blocks set aside disagree with what is shared"
            assert pool.spare >= 0, "more blocks are promised than are free"

    def _check_live(self, table: BlockTable) -> None:
        assert table._live, "a block table was used after it was freed"
