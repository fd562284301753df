"""What must hold of pools, tables and cache between any two calls of the block manager. For tests and idle moments."""

from collections.abc import Collection

import numpy as np

from llmc.runtime.kv.cache import PrefixCache
from llmc.runtime.kv.pool import CachedBlock, Pool
from llmc.runtime.kv.prefix import key_of
from llmc.runtime.kv.table import NO_BLOCK, BlockTable


def check_pool(group: int, pool: Pool, tables: Collection[BlockTable]) -> None:
    """Every block is free, cached or held, as often as is said, and every promise can be kept."""
    held, owed = [0] * pool.num_blocks, 0
    for table in tables:
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
    cached = [b for b, entry in enumerate(pool.cached) if entry is not None]
    unused = {b for b in cached if not held[b]}
    assert set(pool.unused) == unused, "unused blocks are not those that are cached and not held"
    assert set(pool.free) == {b for b, n in enumerate(held) if n == 0} - unused, "a block is lost or both"
    assert owed == pool.owed, "what is owed disagrees with the claims"
    shared = sum(max(0, count - 1) for count in held)
    assert pool.set_aside == (shared if pool.windowed else 0), "blocks set aside disagree with what is shared"
    assert pool.spare >= 0, "more blocks are promised than are free"
    assert all(held[b] <= 1 or pool.cached[b] is not None for b in range(pool.num_blocks)), "a shared block is unknown"


def check_cache(cache: PrefixCache, tables: Collection[BlockTable]) -> None:
    """All that is cached can be found, by keys that are right, and is evicted in an order that leaves it so."""
    entries = [entry for siblings in cache.children.values() for entry in siblings]
    for parent, siblings in cache.children.items():
        assert siblings and all(entry.parent == parent for entry in siblings), "an entry is behind another key"
        ids = [entry.ids for entry in siblings]
        assert ids == sorted(set(ids)), "siblings are not in order"
    assert {entry.key: entry for entry in entries if entry.key is not None} == cache.entries, "keys and siblings differ"
    for entry in entries:
        _check_entry(cache, entry)
    for group, pool in enumerate(cache.pools):
        known = {entry.blocks[group]: entry for entry in entries if entry.blocks[group] != NO_BLOCK}
        assert known == {b: entry for b, entry in enumerate(pool.cached) if entry is not None}, "a block is not found"
        if not pool.windowed:
            _check_order(cache, group, pool)
    for table in tables:
        _check_table(cache, table)
    live = [table for table in tables if table._prefix is not None]
    assert sum(len(tails) for tails in cache.tails.values()) == len(live), "a table's tail is lost"
    expected = {(_key(cache, table, i), table) for table in live for i in range(table._keyed, table._expected)}
    assert expected == {(key, table) for key, tables in cache.expected.items() for table in tables}, (
        "blocks are expected that nobody computes, or the other way round"
    )


def _check_entry(cache: PrefixCache, entry: CachedBlock) -> None:
    ids = np.frombuffer(entry.ids, ">i4").astype(np.int32)
    full = len(ids) == cache.block_tokens
    assert full == (entry.key is not None) and 0 < len(ids) <= cache.block_tokens, "a key of a block that is not full"
    assert entry.key is None or entry.key == key_of(entry.parent, ids), "a key is not that of its ids"
    for pool, block in zip(cache.pools, entry.blocks, strict=True):
        if block == NO_BLOCK:
            assert pool.windowed and entry.key is not None, "an entry lacks a block that it cannot do without"
        else:
            assert entry.key is not None or pool.references[block] == 0, "a block that is not full is shared"
    assert any(block != NO_BLOCK for block in entry.blocks), "an entry of nothing"


def _check_order(cache: PrefixCache, group: int, pool: Pool) -> None:
    """In a group that keeps everything: what is cached has its parent, held by whoever holds it and evicted later."""
    age = {block: at for at, block in enumerate(pool.unused)}
    for siblings in cache.children.values():
        for entry in siblings:
            if entry.index == 0:
                continue
            parent = cache.entries[entry.parent]
            mine, before = entry.blocks[group], parent.blocks[group]
            if pool.references[mine]:
                assert pool.references[before], "a block is held without the one before it"
            else:
                assert pool.references[before] or age[mine] < age[before], "a parent is evicted before its child"


def _check_table(cache: PrefixCache, table: BlockTable) -> None:
    if table._prefix is None:
        return
    assert table._tail == _key(cache, table, table._keyed - 1) and table in cache.tails[table._tail]
    for index in range(table._keyed):
        entry = cache.entries.get(_key(cache, table, index))
        for group, blocks in enumerate(table._blocks):
            if index >= table._first[group]:
                assert entry is not None and entry.blocks[group] == blocks[index], "a full block is not the cached one"


def _key(cache: PrefixCache, table: BlockTable, index: int) -> bytes:
    assert table._prefix is not None
    return table._prefix.key(index, cache.block_tokens)
