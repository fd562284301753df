"""The KV block manager: which blocks of the pools hold which positions of which sequence. Pure bookkeeping.

Every KV group (layers that keep the same positions) has a pool. A sequence owns a `BlockTable`, an opaque handle: only
this package changes it, and the device reads its ids. A sequence is first promised room for so many positions, in every
group or not at all; each step then takes the blocks it needs, which the promise keeps free for it, and gives back those
that no token still to be computed reads (`Retention`).

Blocks are reference counted, so that sequences that begin alike share them; a block with more than one owner is full
and never written. What others may come to share stays in the cache until room is needed (`PrefixCache`): a block that
only the cache knows counts as free, and a promise may rest on it.
"""

from array import array
from collections.abc import Iterable, Sequence

from llmc.runtime.kv.cache import NOTHING, Hit, PrefixCache
from llmc.runtime.kv.counters import CacheCounters, PoolMap
from llmc.runtime.kv.integrity import check_cache, check_pool
from llmc.runtime.kv.pool import Pool
from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.kv.retention import Retention
from llmc.runtime.kv.swap import BlockCopy, CopyKind, Kept, SwapSpace, SwapStore
from llmc.runtime.kv.table import NO_BLOCK, BlockTable

__all__ = ["NO_BLOCK", "BlockCopy", "BlockManager", "BlockTable"]


class BlockManager:
    """Hands out the blocks of one pool for each of `retentions`, with `num_blocks` blocks.

    Without `prefix_cache` nothing is kept, neither for others nor, in the host memory of `swap`, for who is preempted.
    """

    def __init__(
        self,
        retentions: Sequence[Retention],
        num_blocks: Sequence[int],
        *,
        prefix_cache: bool = True,
        swap: SwapSpace | None = None,
    ) -> None:
        if len({r.block_tokens for r in retentions}) > 1:
            raise ValueError(f"the blocks of all groups hold equally many tokens, got {list(retentions)}")
        self._sizes = list(zip(retentions, num_blocks, strict=True))
        self._caches = prefix_cache and bool(self._sizes)
        self._space = swap or SwapSpace((0,) * len(self._sizes), (0,) * len(self._sizes), 0.0)
        self.counters = CacheCounters()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Every block is free, no table is live and nothing is cached, whatever an interrupted operation has left."""
        self._pools = [Pool(retention, count) for retention, count in self._sizes]
        self._windowed = [(g, pool) for g, pool in enumerate(self._pools) if pool.windowed]
        self._cache = PrefixCache(self._pools, self.counters)
        self._tables: set[BlockTable] = set()
        self._copies: list[BlockCopy] = []
        self._swap = SwapStore(self._space)

    @property
    def num_free(self) -> int:
        """Blocks of all pools that nobody holds or was promised; those that the cache would give up are among them."""
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

    def fits_without(self, tables: Iterable[BlockTable], num_tokens: int) -> bool:
        """Whether there is sure to be room for another `num_tokens` positions once these tables are freed."""
        tables = list(tables)
        for group, pool in enumerate(self._pools):
            freed = sum(table._claims[group] - table.num_held(group) for table in tables)
            for table in tables:
                freed += sum(pool.references[block] == 1 for block in table._blocks[group][table._first[group] :])
            if pool.retention.most_blocks(0, num_tokens) > pool.spare + freed:
                return False
        return True

    def awaits(self, prefix: PrefixChain) -> list[BlockTable]:
        """The live tables that are computing the blocks behind those that `allocate` would find.

        To wait some steps for one of them is cheaper than to compute the same twice.
        """
        return self._cache.awaits(prefix, len(prefix.history) - 1) if self._caches else []

    def allocate(self, num_tokens: int, prefix: PrefixChain | None = None) -> BlockTable | None:
        """Room for positions 0..num_tokens-1, or None (and nothing promised) if a pool has too few blocks to spare.

        The first `num_computed` positions of the table are in the cache already: as many of the prefix's ids as are
        found, or were `keep`t of it, but not the last one, whose logits somebody wants. The copies that this takes are
        to be made (`take_copies`) before the next step.
        """
        prefix = prefix if self._caches else None
        limit = 0 if prefix is None else min(len(prefix.history), num_tokens) - 1
        hit = NOTHING if prefix is None else self._cache.find(prefix, limit)
        kept = None if prefix is None else self._kept(prefix, hit.length, limit)
        there = hit.blocks(len(self._pools)) if kept is None or prefix is None else self._cached(kept, prefix)
        table = BlockTable(len(self._pools), prefix)
        table.num_computed = table._computed = length = hit.length if kept is None else kept.computed
        table._claims = [pool.retention.most_blocks(length, num_tokens) for pool in self._pools]
        table._promised = num_tokens
        for group, pool in enumerate(self._pools):
            # in a window even blocks that others hold will have to be replaced; those kept to the end are simply there
            held = [] if pool.windowed else [b for b in there[group] if b != NO_BLOCK and pool.references[b]]
            if table._claims[group] - len(held) > pool.spare:
                return None
        self._share(table, there)
        if kept is not None:
            self._bring_back(table, kept)
        elif hit.partly is not None:
            self._copy(table, hit.partly)
        for group, pool in enumerate(self._pools):
            pool.owed += table._claims[group] - table.num_held(group)
        if prefix is not None:
            table._keyed = 0 if kept is not None else len(hit.whole)
            self._cache.begin(table)
            self._cache.advance(table, length)
            self._swap.drop(prefix)
            self._count(table, hit if kept is None else NOTHING)
        self._tables.add(table)
        return table

    def keep(self, table: BlockTable, recompute_seconds: float) -> bool:
        """Copy blocks of a table that is about to be freed to host memory, if there is room and to compute its
        positions again takes longer. `allocate` brings them back, unless they are let go of first."""
        self._check_live(table)
        if table._prefix is None or table._begun > table._computed:
            return False
        wanted = []
        for group, pool in enumerate(self._pools):
            first, end = table._first[group], pool.retention.blocks_for(table._computed)
            blocks = enumerate(table._blocks[group][first:end], first)
            # what others hold as well is likely to be there still
            wanted.append({index: block for index, block in blocks if pool.references[block] == 1})
        copies = self._swap.keep(table, wanted, recompute_seconds)
        self._copies += copies
        self.counters.swapped_out += len(copies)
        return bool(copies)

    def let_go(self, prefix: PrefixChain) -> None:
        """Nobody will ask for what was kept of a sequence, if anything was."""
        self._swap.drop(prefix)

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
        table._begun = num_tokens
        if num_tokens <= table._room:
            return
        for group, pool in enumerate(self._pools):
            blocks = table._blocks[group]
            assert num_tokens - table._computed <= pool.retention.step_tokens, "a step has more tokens than was said"
            for _ in range(pool.retention.blocks_for(num_tokens) - len(blocks)):
                blocks.append(self._cache.take(group))
                pool.owed -= 1
            table._room = len(blocks) * pool.retention.block_tokens
        table.version += 1

    def take_copies(self) -> list[BlockCopy]:
        """What the device has to copy, in this order, before the next step."""
        copies, self._copies = self._copies, []
        return copies

    def computed(self, table: BlockTable, num_tokens: int) -> None:
        """Positions 0..num_tokens-1 are in the cache: full blocks can be found, what no later token reads is given
        back."""
        self._check_live(table)
        quiet = num_tokens < table._quiet_until and table._promised <= table._computed + 1
        table._computed = num_tokens
        if num_tokens >= table._next_key:
            self._cache.advance(table, num_tokens)
        if quiet or not self._windowed:  # most steps of decoding: no claim changes
            return
        for group, pool in self._windowed:
            blocks, first = table._blocks[group], pool.retention.first_kept(num_tokens)
            for index in range(table._first[group], first):
                pool.give_back(blocks[index])
                blocks[index] = NO_BLOCK
                table.version += 1
            claim = pool.retention.most_blocks(num_tokens, table._promised)
            pool.owed += first - table._first[group] + claim - table._claims[group]
            table._first[group], table._claims[group] = first, claim
        table._quiet_until = min(pool.retention.next_release(num_tokens) for _, pool in self._windowed)

    def free(self, table: BlockTable) -> None:
        """Give up a table; blocks that nobody else holds become free, those that others may find as the last ones."""
        self._check_live(table)
        self._tables.remove(table)
        if table._prefix is not None:
            self._cache.end(table)
        for group, pool in enumerate(self._pools):
            pool.owed -= table._claims[group] - table.num_held(group)
            blocks = table._blocks[group]
            for block in reversed(blocks[table._first[group] :]):
                pool.give_back(block)
            del blocks[:]
        table._live = False

    def occupancy(self) -> tuple[PoolMap, ...]:
        """What every block of every pool is used for."""
        return tuple(PoolMap(pool.uses()) for pool in self._pools)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is free, cached or referenced as often as tables hold it, every
        promise can be kept, and all that is cached can be found."""
        for group, pool in enumerate(self._pools):
            check_pool(group, pool, self._tables)
        check_cache(self._cache, self._tables)
        self._swap.check_integrity()
        assert self._swap.kept.keys().isdisjoint(table._prefix for table in self._tables), "kept of one that runs"

    def _kept(self, prefix: PrefixChain, found: int, limit: int) -> Kept | None:
        """What was kept of a sequence, if it is more than what is found, and what is not kept of it is cached."""
        kept = self._swap.kept.get(prefix)
        if kept is None or not found < kept.computed <= limit:
            return None
        for group, (pool, blocks) in enumerate(zip(self._pools, self._cached(kept, prefix), strict=True)):
            for index in range(pool.retention.first_kept(kept.computed), len(blocks)):
                if blocks[index] == NO_BLOCK and index not in kept.slots[group]:
                    return None
        return kept

    def _cached(self, kept: Kept, prefix: PrefixChain) -> list[list[int]]:
        """By group, cached blocks of the positions that were computed, NO_BLOCK where there is none."""
        size = self._cache.block_tokens
        entries = [self._cache.entries.get(prefix.key(index, size)) for index in range(kept.computed // size)]
        partly = [NO_BLOCK] * (kept.computed % size > 0)
        groups = range(len(self._pools))
        return [[NO_BLOCK if entry is None else entry.blocks[g] for entry in entries] + partly for g in groups]

    def _share(self, table: BlockTable, there: Sequence[list[int]]) -> None:
        """The table's first blocks are those that are there."""
        for group, (pool, blocks) in enumerate(zip(self._pools, there, strict=True)):
            table._first[group] = first = pool.retention.first_kept(table._computed)
            table._blocks[group] = array("i", [NO_BLOCK] * first + blocks[first:])
            for block in blocks[first:]:
                if block != NO_BLOCK:
                    pool.share(block)
            table._room = len(blocks) * pool.retention.block_tokens

    def _copy(self, table: BlockTable, sources: Sequence[int]) -> None:
        """The table's next block, of each group, begins as another one does."""
        self._cache.touch(sources)
        for group, source in enumerate(sources):
            target = self._cache.take(group)
            table._blocks[group].append(target)
            if target != source:  # it may itself have been evicted for the copy
                self._copies.append(BlockCopy(group, source, target))
        table._room += self._cache.block_tokens

    def _bring_back(self, table: BlockTable, kept: Kept) -> None:
        """Blocks of the table that are not there come from host memory."""
        for group, blocks in enumerate(table._blocks):
            for index in range(table._first[group], len(blocks)):
                if blocks[index] == NO_BLOCK:
                    blocks[index] = self._cache.take(group)
                    self._copies.append(BlockCopy(group, kept.slots[group][index], blocks[index], CopyKind.IN))
                    self.counters.swapped_in += 1

    def _count(self, table: BlockTable, hit: Hit) -> None:
        assert table._prefix is not None
        hits, blocks = len(hit.whole) + (hit.partly is not None), self._pools[0].retention.blocks_for
        self.counters.hits += hits
        self.counters.misses += blocks(len(table._prefix.history)) - blocks(table.num_computed)
        self.counters.copies += hit.partly is not None
        self.counters.tokens_saved += table.num_computed

    def _check_live(self, table: BlockTable) -> None:
        assert table._live, "a block table was used after it was freed"
