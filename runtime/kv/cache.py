"""The prefix cache: which blocks hold the keys and values of which ids, also when no sequence uses them any more.

Whole blocks are found by their key (runtime/kv/prefix.py). Blocks behind the same key are siblings, sorted by their
ids: one that begins with some of the ids that are looked for is next to where all of them would stand. Siblings may be
partly filled, and so is the block that a live table is filling, its tail.

What nobody references is evicted when a block is needed, least recently used first. A table gives its last block back
first, and holds the blocks before each of its own; so in a group that keeps everything the blocks behind an unused one
are unused too, and older in that order: a parent is never evicted before its children. In a group with a window a block
may well outlive those before it, which the next token does not read.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.kv.counters import CacheCounters
from llmc.runtime.kv.pool import CachedBlock, Pool
from llmc.runtime.kv.prefix import PrefixChain, common_length
from llmc.runtime.kv.table import NO_BLOCK, BlockTable

_BIG_ENDIAN = ">i4"
_IDS = attrgetter("ids")


@dataclass(frozen=True)
class Hit:
    """What is there of a sequence: `length` positions, in whole blocks and at last a part of another one's block."""

    length: int
    whole: tuple[CachedBlock | None, ...]  # None where no group needs the block any more
    partly: tuple[int, ...] | None  # the block to be copied, by group

    def blocks(self, num_groups: int) -> list[list[int]]:
        """The whole ones, by group."""
        groups = range(num_groups)
        return [[NO_BLOCK if entry is None else entry.blocks[group] for entry in self.whole] for group in groups]


NOTHING = Hit(0, (), None)


class PrefixCache:
    """Finds blocks of `pools`, one for each KV group, and decides which is evicted."""

    def __init__(self, pools: Sequence[Pool], counters: CacheCounters) -> None:
        self.pools = pools
        self.block_tokens = pools[0].retention.block_tokens if pools else 1
        self.entries: dict[bytes, CachedBlock] = {}  # whole blocks by key
        self.children: dict[bytes, list[CachedBlock]] = {}  # by the key of the block before, sorted by ids
        self.tails: dict[bytes, dict[BlockTable, None]] = {}  # live tables by the key before the block they fill
        self.expected: dict[bytes, dict[BlockTable, None]] = {}  # live tables by the keys of blocks that they will fill
        self._counters = counters
        self._windowed = [pool.retention for pool in pools if pool.windowed]
        self._keeps = len(self._windowed) < len(pools)  # some group keeps everything
        self._states = any(pool.retention.state for pool in pools)

    def find(self, prefix: PrefixChain, limit: int) -> Hit:
        """The longest prefix, up to `limit` positions, of which every group has what the next token reads."""
        size = self.block_tokens
        whole = self._whole(prefix, limit // size)
        missing = [self._missing(whole, group) for group, pool in enumerate(self.pools) if pool.windowed]
        for count in range(len(whole), -1, -1):
            gaps = [gap[count] for gap in missing]
            if not self._reads_none(gaps, min(limit, (count + 1) * size - 1)):
                continue  # nor at any lesser length
            filled, partly = self._part(prefix, count, limit)
            for length, source in ((count * size + filled, partly), (count * size, None)):
                if self._reads_none(gaps, length):
                    return Hit(length, tuple(whole[:count]), source)
        return NOTHING

    def awaits(self, prefix: PrefixChain, limit: int) -> list[BlockTable]:
        """The live tables that are computing what comes behind the longest prefix that is there."""
        size, length = self.block_tokens, self.find(prefix, limit).length
        count = length // size
        if (count + 1) * size <= limit and (found := self.expected.get(prefix.key(count, size))):
            return list(found)
        awaited = []
        ids = prefix.block(count, size)[: limit - count * size]
        for table in self.tails.get(prefix.key(count - 1, size), ()):
            end = count * size + common_length(_tail_ids(table, count, size), ids)
            if end > length and end > table._computed and _pending(table) > 1:
                awaited.append(table)
        return awaited

    def begin(self, table: BlockTable) -> None:
        """A table goes live, with as many keyed blocks as hit; it will fill those of its ids."""
        assert table._prefix is not None
        table._next_key = (table._keyed + 1) * self.block_tokens
        table._expected = len(table._prefix.history) // self.block_tokens
        for index in range(table._keyed, table._expected):
            key = table._prefix.key(index, self.block_tokens)
            self.expected.setdefault(key, {})[table] = None
        self._move_tail(table)

    def advance(self, table: BlockTable, computed: int) -> None:
        """Blocks of the table that are full now can be found. If one of the same content can be, it is taken instead
        of the table's own, which goes free."""
        assert table._prefix is not None
        whole = min(computed, len(table._prefix.history)) // self.block_tokens
        for index in range(table._keyed, whole):
            self._enter(table, index)
            self._no_longer_expected(table, index)
        table._keyed = whole
        table._next_key = (whole + 1) * self.block_tokens
        self._move_tail(table)

    def end(self, table: BlockTable) -> None:
        """Before the table's blocks are given back: its tail can be found, and it fills no other block."""
        if table._computed >= table._next_key:
            self.advance(table, table._computed)
        prefix, index, size = table._prefix, table._keyed, self.block_tokens
        assert prefix is not None
        known = min(table._computed, len(prefix.history))
        # a state that a step is changing, or that ids lie behind which nobody knows, is that of no known ids
        if known > index * size and not (self._states and known < max(table._computed, table._begun)):
            self._enter_partly(table, index, known - index * size)
        for later in range(index, table._expected):
            self._no_longer_expected(table, later)
        self._leave_tail(table)

    def take(self, group: int) -> int:
        """A block of the group's pool, if need be one that is evicted; there must be one that nobody references."""
        pool = self.pools[group]
        if not pool.free:
            self._evict(group)
        return pool.take()

    def touch(self, blocks: Sequence[int]) -> None:
        """Unused blocks (by group) that were of use just now, though nobody references them."""
        for pool, block in zip(self.pools, blocks, strict=True):
            if block in pool.unused:
                pool.unused.move_to_end(block)

    def _whole(self, prefix: PrefixChain, most: int) -> list[CachedBlock | None]:
        """Entries of the first blocks, as far as every group that keeps everything has them."""
        found: list[CachedBlock | None] = []
        for index in range(most):
            entry = self.entries.get(prefix.key(index, self.block_tokens))
            if entry is None and self._keeps:
                break
            found.append(entry)
        return found

    def _missing(self, whole: Sequence[CachedBlock | None], group: int) -> list[int]:
        """At i the last of blocks 0..i-1 that the group does not have, -1 if it has all."""
        last = [-1]
        for index, entry in enumerate(whole):
            gone = entry is None or entry.blocks[group] == NO_BLOCK
            last.append(index if gone else last[-1])
        return last

    def _reads_none(self, gaps: Sequence[int], length: int) -> bool:
        """Whether the token at `length` reads none of these blocks, one of each group with a window."""
        return all(gap < retention.first_kept(length) for gap, retention in zip(gaps, self._windowed, strict=True))

    def _part(self, prefix: PrefixChain, index: int, limit: int) -> tuple[int, tuple[int, ...] | None]:
        """The block that begins with the most of the ids of block `index`, and how many those are."""
        size = self.block_tokens
        ids = prefix.block(index, size)[: limit - index * size]
        best, source = 0, None
        for length, blocks in self._parts(prefix.key(index - 1, size), index, ids):
            if best < length < size:
                best, source = length, blocks
        return best, source

    def _parts(self, parent: bytes, index: int, ids: NDArray[np.int32]) -> Iterator[tuple[int, tuple[int, ...]]]:
        siblings = self.children.get(parent)
        if siblings:
            at = bisect_left(siblings, ids.astype(_BIG_ENDIAN).tobytes(), key=_IDS)
            for entry in siblings[max(0, at - 1) : at + 1]:
                length = common_length(np.frombuffer(entry.ids, _BIG_ENDIAN).astype(np.int32), ids)
                if entry.whole and (not self._states or 4 * length == len(entry.ids)):
                    yield length, tuple(entry.blocks)
        for table in self.tails.get(parent, ()):
            filled = table._computed - index * self.block_tokens
            length = common_length(_tail_ids(table, index, self.block_tokens)[: max(0, filled)], ids)
            if length and (not self._states or length == filled):
                blocks = tuple(blocks[index] for blocks in table._blocks)
                if NO_BLOCK not in blocks:
                    yield length, blocks

    def _enter(self, table: BlockTable, index: int) -> None:
        prefix, size = table._prefix, self.block_tokens
        assert prefix is not None
        key = prefix.key(index, size)
        entry = self.entries.get(key)
        if entry is None:
            ids = prefix.block(index, size).astype(_BIG_ENDIAN).tobytes()
            entry = CachedBlock(index, prefix.key(index - 1, size), key, ids, [NO_BLOCK] * len(self.pools))
        for group, pool in enumerate(self.pools):
            mine, theirs = table._blocks[group][index], entry.blocks[group]
            if mine == NO_BLOCK:
                continue
            if theirs == NO_BLOCK:
                entry.blocks[group], pool.cached[mine] = mine, entry
            else:
                pool.share(theirs)
                pool.give_back(mine)
                table._blocks[group][index] = theirs
                table.version += 1
        if key not in self.entries and any(block != NO_BLOCK for block in entry.blocks):
            self.entries[key] = entry
            self._add_child(entry)

    def _enter_partly(self, table: BlockTable, index: int, filled: int) -> None:
        prefix, size = table._prefix, self.block_tokens
        assert prefix is not None
        parent = prefix.key(index - 1, size)
        ids = prefix.block(index, size)[:filled].astype(_BIG_ENDIAN).tobytes()
        siblings = self.children.get(parent, [])
        at = bisect_left(siblings, ids, key=_IDS)
        if at < len(siblings) and siblings[at].ids.startswith(ids) and siblings[at].whole:
            return
        blocks = [table._blocks[group][index] for group in range(len(self.pools))]
        if NO_BLOCK in blocks:
            return
        entry = CachedBlock(index, parent, None, ids, blocks)
        for pool, block in zip(self.pools, blocks, strict=True):
            pool.cached[block] = entry
        self._add_child(entry)

    def _evict(self, group: int) -> None:
        pool = self.pools[group]
        block = next(iter(pool.unused))
        entry = pool.cached[block]
        assert entry is not None, "an unused block has no content"
        self._counters.evictions += 1
        if pool.windowed and entry.key is not None:
            self._detach(group, entry)
            if any(other != NO_BLOCK for other in entry.blocks):
                return
        for other in range(len(self.pools)):  # without this block the entry's others are of no use
            self._detach(other, entry)
        self._remove(entry)

    def _detach(self, group: int, entry: CachedBlock) -> None:
        block = entry.blocks[group]
        if block != NO_BLOCK:
            entry.blocks[group] = NO_BLOCK
            self.pools[group].forget(block)

    def _add_child(self, entry: CachedBlock) -> None:
        siblings = self.children.setdefault(entry.parent, [])
        siblings.insert(bisect_left(siblings, entry.ids, key=_IDS), entry)

    def _remove(self, entry: CachedBlock) -> None:
        if entry.key is not None:
            del self.entries[entry.key]
        siblings = self.children[entry.parent]
        del siblings[bisect_left(siblings, entry.ids, key=_IDS)]
        if not siblings:
            del self.children[entry.parent]

    def _no_longer_expected(self, table: BlockTable, index: int) -> None:
        if index >= table._expected:
            return
        assert table._prefix is not None
        key = table._prefix.key(index, self.block_tokens)
        del self.expected[key][table]
        if not self.expected[key]:
            del self.expected[key]

    def _move_tail(self, table: BlockTable) -> None:
        assert table._prefix is not None
        self._leave_tail(table)
        table._tail = table._prefix.key(table._keyed - 1, self.block_tokens)
        self.tails.setdefault(table._tail, {})[table] = None

    def _leave_tail(self, table: BlockTable) -> None:
        if table._tail is None:
            return
        tables = self.tails[table._tail]
        del tables[table]
        if not tables:
            del self.tails[table._tail]
        table._tail = None


def _tail_ids(table: BlockTable, index: int, size: int) -> NDArray[np.int32]:
    assert table._prefix is not None
    return table._prefix.block(index, size)


def _pending(table: BlockTable) -> int:
    assert table._prefix is not None
    return len(table._prefix.history) - table._computed
