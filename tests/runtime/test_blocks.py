"""The block manager against a cache of its own: whatever tables are made, grown and freed, the positions that a later
token reads are there, whoever computed them, promises are kept, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout
from llmc.runtime.kv.blocks import NO_BLOCK, BlockCopy, BlockManager, BlockTable
from llmc.runtime.kv.pool_sizes import sequence_bytes, size_pools
from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.kv.retention import Retention
from llmc.runtime.kv.swap import CopyKind, SwapSpace
from llmc.runtime.loop.request import TokenHistory
from llmc.runtime.step.arrays import StepLimits

Value = tuple[bytes, tuple[int, ...]]
windows = st.none() | st.integers(1, 20)


def held_at_most(retention: Retention, start: int, length: int) -> int:
    """Counted out: the most blocks that hold what any step reads and writes, from position `start` on."""
    most = 0
    for first in range(start, length):
        end = min(length, first + retention.step_tokens)
        low = 0 if retention.window is None else max(0, first - retention.window + 1)
        most = max(most, len({position // retention.block_tokens for position in range(low, end)}))
    return most


@settings(max_examples=300, deadline=None)
@given(windows, st.integers(1, 7), st.integers(1, 12), st.integers(1, 80), st.integers(0, 80))
def test_retention_counts_blocks(
    window: int | None, block_tokens: int, step_tokens: int, length: int, start: int
) -> None:
    retention = Retention(window, block_tokens, step_tokens)
    start = min(start, length - 1)
    counted, bound = held_at_most(retention, start, length), retention.most_blocks(start, length)
    # where a step begins decides how many blocks its window straddles, and a short sequence may miss the worst
    assert counted <= bound <= counted + 1 if window else bound == counted
    if window is not None and length - start >= step_tokens + block_tokens and start >= window:
        assert bound == counted
        assert bound <= -(-(window + step_tokens) // block_tokens) + 1
    for computed in range(length):
        low = 0 if window is None else max(0, computed - window + 1)
        assert retention.first_kept(computed) == low // block_tokens
        if window is not None:
            moved = (n for n in count(computed) if retention.first_kept(n) > retention.first_kept(computed))
            assert retention.next_release(computed) == next(moved)
    for num_blocks in range(1, 30):
        longest = retention.longest(num_blocks, 80)
        fits = [n for n in range(1, 81) if retention.most_blocks(0, n) <= num_blocks]
        assert longest == max(fits)


@dataclass(eq=False)
class Seq:
    """A table beside what it stands for. Position p holds (root, ids up to p); a root of its own is nobody else's."""

    table: BlockTable
    root: bytes
    history: TokenHistory
    promised: int
    computed: int

    def value(self, position: int) -> Value:
        return self.root, tuple(self.history.ids[: position + 1].tolist())


class Blocks(RuleBasedStateMachine):
    """Tables beside what a device would have written for them; what the cache finds is looked up anew."""

    @initialize(
        groups=st.lists(st.tuples(windows, st.integers(1, 30)), min_size=1, max_size=3),
        block_tokens=st.integers(1, 4),
        step_tokens=st.integers(1, 9),
        slots=st.integers(0, 12),
    )
    def start(self, groups: list[tuple[int | None, int]], block_tokens: int, step_tokens: int, slots: int) -> None:
        self.windows, self.num_blocks = zip(*groups, strict=True)
        self.block_tokens, self.step_tokens = block_tokens, step_tokens
        self.retentions = [Retention(window, block_tokens, step_tokens) for window in self.windows]
        space = SwapSpace((slots,) * len(groups), (1,) * len(groups), 1.0)
        self.manager = BlockManager(self.retentions, self.num_blocks, swap=space)
        self.preempted: list[tuple[PrefixChain, Seq, int]] = []  # and how many positions are sure to be there
        self.live: list[Seq] = []
        self.seen: list[list[int]] = [[]]
        self.written: dict[
            tuple[int, int, int], Value | None
        ] = {}  # (group, block, offset) -> what was written there last
        self.saved = 0

    def chosen(self, index: int) -> Seq | None:
        return self.live[index % len(self.live)] if self.live else None

    def copied(self, copies: Sequence[BlockCopy]) -> dict[tuple[int, int, int], Value | None]:
        """What is written once these copies are made. Slots of host memory are blocks -2 and below."""
        written = dict(self.written)
        for copy in copies:
            source = -2 - copy.source if copy.kind is CopyKind.IN else copy.source
            target = -2 - copy.target if copy.kind is CopyKind.OUT else copy.target
            for offset in range(self.block_tokens):
                written[copy.group, target, offset] = written.get((copy.group, source, offset))
        return written

    def read(self, seq: Seq) -> None:
        """What the next token reads must be what was written for the ids before it."""
        written = self.copied(self.manager._copies)
        for group, retention in enumerate(self.retentions):
            low = 0 if retention.window is None else max(0, seq.computed - retention.window + 1)
            for position in range(low, seq.computed):
                block = seq.table.block_ids(group)[position // self.block_tokens]
                assert block != NO_BLOCK
                found = written[group, block, position % self.block_tokens]
                assert found == seq.value(position), "another value was read"

    def longest(self, prefix: PrefixChain, limit: int) -> tuple[int, bool]:
        """Looked up length by length; and whether every entry has its block in all groups."""
        cache, size = self.manager._cache, self.block_tokens
        ids = prefix.history.ids[:limit].tolist()
        for length in range(limit, 0, -1):
            whole, rest = divmod(length, size)
            entries = [cache.entries.get(prefix.key(index, size)) for index in range(whole)]
            there = all(
                (entry := entries[index]) is not None and entry.blocks[group] != NO_BLOCK
                for group, retention in enumerate(self.retentions)
                for index in range(retention.first_kept(length), whole)
            )
            parent, part = prefix.key(whole - 1, size), ids[whole * size : length]
            parts = [np.frombuffer(e.ids, ">i4").tolist() for e in cache.children.get(parent, []) if e.whole]
            for seq in self.live:
                other = seq.table._prefix
                if other and seq.computed // size == whole and other.key(whole - 1, size) == parent:
                    parts.append(seq.history.ids[whole * size : seq.computed].tolist())
            if there and (not rest or any(one[:rest] == part for one in parts)):
                return length, all(e.whole for e in cache.entries.values())
        return 0, True

    @rule(tokens=st.integers(0, 60))
    def allocate(self, tokens: int) -> None:
        free, shortage = self.manager.num_free, self.manager.shortage(tokens, now=True)
        table = self.manager.allocate(tokens)
        assert (table is None) == (shortage is not None) and (table is not None or self.manager.num_free == free)
        if table is not None:
            assert table.num_computed == 0
            self.live.append(Seq(table, f"own {id(table)}".encode(), TokenHistory([5] * tokens), tokens, 0))

    @rule(
        root=st.sampled_from([b"one", b"other"]),
        index=st.integers(0, 9),
        kept=st.integers(0, 40),
        more=st.lists(st.integers(0, 1), max_size=30),
        answer=st.integers(0, 5),
    )
    def allocate_prefix(self, root: bytes, index: int, kept: int, more: list[int], answer: int) -> None:
        ids = [*self.seen[index % len(self.seen)][:kept], *more] or [0]
        history = TokenHistory(ids)
        prefix, free = PrefixChain(history, root), self.manager.num_free
        length, complete = self.longest(prefix, len(ids) - 1)
        if self.manager.awaits(prefix):
            alike = [(_alike(seq.history.ids, ids[:-1]), seq) for seq in self.live if seq.root == root]
            assert any(common > max(length if complete else 0, seq.computed) for common, seq in alike)
        table = self.manager.allocate(len(ids) + answer, prefix)
        if table is None:
            assert self.manager.num_free == free and self.manager.shortage(len(ids) + answer, now=True) is not None
            return
        found = table.num_computed
        assert found <= length and (found == length or not complete), "a longer prefix is there"
        self.saved += found
        assert self.manager.counters.tokens_saved == self.saved
        self.live.append(Seq(table, root, history, len(ids) + answer, found))
        self.seen = [*self.seen, ids][-10:]

    @rule(index=st.integers(0, 7), tokens=st.integers(0, 60))
    def extend(self, index: int, tokens: int) -> None:
        if (seq := self.chosen(index)) is None:
            return
        free = self.manager.num_free
        if self.manager.extend(seq.table, tokens):
            seq.promised = max(seq.promised, tokens)
        else:
            assert self.manager.num_free == free

    @rule(index=st.integers(0, 7), tokens=st.just(1) | st.integers(1, 9), token=st.integers(0, 1))
    def advance(self, index: int, tokens: int, token: int) -> None:
        """A step within the promise: it cannot fail."""
        if (seq := self.chosen(index)) is None:
            return
        start = seq.computed
        if tokens == 1 and start == seq.promised and self.manager.extend(seq.table, start + 1):  # as in decoding
            seq.promised += 1
        end = min(start + min(tokens, self.step_tokens), seq.promised)
        if end <= start:
            return
        while len(seq.history) < end:
            seq.history.append(token)
        self.manager.take(seq.table, end)
        self.manager.check_integrity()
        self.written = self.copied(self.manager.take_copies())
        for position in range(start, end):
            for group, pool in enumerate(self.manager._pools):
                block = seq.table.block_ids(group)[position // self.block_tokens]
                others = [s for s in self.live if s is not seq and block in s.table.block_ids(group)]
                assert not others, "a block that others own is written"
                assert pool.cached[block] is None, "a block that others may find is written"
                self.written[group, block, position % self.block_tokens] = seq.value(position)
            seq.computed = position
            self.read(seq)
        seq.computed = end
        self.manager.computed(seq.table, end)

    @rule(index=st.integers(0, 7))
    def free(self, index: int) -> None:
        if (seq := self.chosen(index)) is not None:
            self.manager.free(seq.table)
            self.live.remove(seq)
            self.seen = [*self.seen, seq.history.ids[: seq.computed].tolist()][-10:]

    @rule(index=st.integers(0, 7), recompute=st.sampled_from([0.0, 8.0, 1e9]))
    def preempt(self, index: int, recompute: float) -> None:
        if (seq := self.chosen(index)) is None or (prefix := seq.table._prefix) is None:
            return
        held = sum(seq.table.num_held(group) for group in range(len(self.windows)))
        kept = self.manager.keep(seq.table, recompute)
        assert not kept or recompute > 0
        assert not kept or recompute == 1e9 or held <= recompute
        shared = any(pool.references[block] > 1 for pool in self.manager._pools for block in range(pool.num_blocks))
        self.free(index)
        self.manager.check_integrity()
        self.preempted.append((prefix, seq, seq.computed if kept and not shared else 0))

    @rule(index=st.integers(0, 7), answer=st.integers(0, 5))
    def resume(self, index: int, answer: int) -> None:
        if not self.preempted:
            return
        prefix, seq, sure = self.preempted[index % len(self.preempted)]
        if len(seq.history) == seq.computed:  # the token that it goes on with
            seq.history.append(1)
        num_tokens = len(seq.history) + answer
        table = self.manager.allocate(num_tokens, prefix)
        if table is None:
            return
        self.preempted.remove((prefix, seq, sure))
        assert sure <= table.num_computed < len(seq.history)
        self.saved += table.num_computed
        self.live.append(Seq(table, seq.root, seq.history, num_tokens, table.num_computed))

    @rule(index=st.integers(0, 7))
    def let_go(self, index: int) -> None:
        if self.preempted:
            prefix, *_ = self.preempted.pop(index % len(self.preempted))
            self.manager.let_go(prefix)

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        assert self.manager.tables == {seq.table for seq in self.live}
        for seq in self.live:
            self.read(seq)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for seq in self.live:
            self.manager.free(seq.table)
        for prefix, *_ in self.preempted:
            self.manager.let_go(prefix)
        assert not self.manager._swap.kept
        self.manager.check_integrity()
        assert self.manager.num_free == sum(self.num_blocks)
        self.manager.begin_anew()
        cache = self.manager._cache
        assert not (cache.entries or cache.children or cache.tails or cache.expected)


def _alike(one: NDArray[np.int32], other: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one.tolist(), other, strict=False)) if a != b), min(len(one), len(other))
    )


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def one_pool(num_blocks: int, window: int | None = None) -> BlockManager:
    return BlockManager([Retention(window, 4, 8)], [num_blocks])


def held(manager: BlockManager, tokens: int) -> BlockTable:
    """A table for so many tokens, for which there are blocks."""
    table = manager.allocate(tokens)
    assert table is not None
    return table


def test_a_freed_table_cannot_be_used() -> None:
    manager = one_pool(2)
    table = held(manager, 4)
    manager.free(table)
    uses: list[Callable[[BlockTable, int], object]] = [manager.extend, manager.take, manager.computed]
    uses.append(lambda table, _: manager.free(table))
    for use in uses:
        with pytest.raises(AssertionError, match="after it was freed"):
            use(table, 8)


def test_a_promise_that_grows_inside_a_block_grows_the_claim() -> None:
    """The step may now be five tokens long, which straddle three blocks with their window; four lay in two."""
    manager = one_pool(20, window=2)
    table = held(manager, 7)
    manager.take(table, 7)
    manager.computed(table, 7)
    assert manager.extend(table, 11)
    manager.take(table, 11)
    assert manager.extend(table, 12)
    manager.check_integrity()


def test_blocks_come_back_while_a_prompt_is_computed() -> None:
    """Two prompts of 400 tokens through a pool that holds neither."""
    manager = BlockManager([Retention(None, 4, 8), Retention(10, 4, 8)], [200, 12])
    bound = manager._pools[1].retention.most_blocks(0, 400)
    assert bound == 5
    tables = [held(manager, 400), held(manager, 400)]
    assert manager.allocate(400) is None
    for end in range(8, 401, 8):
        for table in tables:
            manager.take(table, end)
            assert table.num_held(1) <= bound and table.num_held(0) == end // 4
            manager.computed(table, end)
            manager.check_integrity()
    assert [table.num_held(1) for table in tables] == [3, 3]


layouts = st.lists(st.tuples(windows, st.integers(1, 9)), max_size=3)


@settings(max_examples=300, deadline=None)
@given(layouts, st.integers(1, 7), st.integers(1, 6), st.integers(1, 12), st.integers(1, 90), st.integers(0, 2000))
def test_pools_fit_their_memory_and_use_it(
    groups: list[tuple[int | None, int]],
    block_tokens: int,
    max_seqs: int,
    max_tokens: int,
    max_seq_len: int,
    budget: int,
) -> None:
    kv = KvLayout(block_tokens, tuple(KvGroup(window, size, 1, ()) for window, size in groups))
    limits = StepLimits(max(max_tokens, max_seqs), max_seqs, max_seqs, max_seq_len, block_tokens, len(groups))
    sizes = [size for _, size in groups]
    blocks = size_pools(kv, limits, budget)
    if blocks is None:
        assert budget < sum(sizes)
        return
    spent = sum(n * size for n, size in zip(blocks, sizes, strict=True))
    assert spent <= budget
    retentions = [Retention(window, block_tokens, limits.max_tokens) for window, _ in groups]
    useful = [max_seqs * retention.most_blocks(0, max_seq_len) for retention in retentions]
    for n, most, size in zip(blocks, useful, sizes, strict=True):
        assert n <= most
        assert n == most or size > budget - spent, "a block more would have fitted and had its use"
    longest = min((r.longest(n, max_seq_len) for r, n in zip(retentions, blocks, strict=True)), default=max_seq_len)
    if sequence_bytes(kv, limits.max_tokens, max_seq_len) <= budget:
        assert longest == max_seq_len
    else:
        assert all(n >= min(max_seqs, budget // sum(sizes)) for n in blocks)
