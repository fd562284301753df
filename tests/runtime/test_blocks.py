"""The block manager against a cache of its own: whatever tables are made, grown, shared and freed, the positions that a
later token reads are there, promises are kept, and nothing is lost."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout
from llmc.runtime.kv.blocks import NO_BLOCK, BlockManager
from llmc.runtime.kv.pool_sizes import sequence_bytes, size_pools
from llmc.runtime.kv.retention import Retention
from llmc.runtime.step.arrays import StepLimits

windows = st.none() | st.integers(1, 20)


def held_at_most(retention, start, length):
    """Counted out: the most blocks that hold what any step reads and writes, from position `start` on."""
    most = 0
    for first in range(start, length):
        end = min(length, first + retention.step_tokens)
        low = 0 if retention.window is None else max(0, first - retention.window + 1)
        most = max(most, len({position // retention.block_tokens for position in range(low, end)}))
    return most


@settings(max_examples=300, deadline=None)
@given(windows, st.integers(1, 7), st.integers(1, 12), st.integers(1, 80), st.integers(0, 80))
def test_retention_counts_blocks(window, block_tokens, step_tokens, length, start):
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


class Blocks(RuleBasedStateMachine):
    """Tables beside what a device would have written for them."""

    @initialize(
        groups=st.lists(st.tuples(windows, st.integers(1, 30)), min_size=1, max_size=3),
        block_tokens=st.integers(1, 4),
        step_tokens=st.integers(1, 9),
    )
    def start(self, groups, block_tokens, step_tokens):
        self.windows, self.num_blocks = zip(*groups, strict=True)
        self.block_tokens, self.step_tokens = block_tokens, step_tokens
        retentions = [Retention(window, block_tokens, step_tokens) for window in self.windows]
        self.manager = BlockManager(retentions, self.num_blocks)
        self.tables = []
        self.written = {}  # table -> the value of each position
        self.cache = {}  # (group, block, offset) -> value
        self.values = count()
        self.promised = {}

    def chosen(self, index):
        return self.tables[index % len(self.tables)] if self.tables else None

    def read(self, table, start):
        """What a token at position `start` reads must be what was written for it."""
        for group, window in enumerate(self.windows):
            low = 0 if window is None else max(0, start - window + 1)
            for position in range(low, start):
                block = table.block_ids(group)[position // self.block_tokens]
                assert block != NO_BLOCK
                found = self.cache[group, block, position % self.block_tokens]
                assert found == self.written[table][position], "another value was read"

    @rule(tokens=st.integers(0, 60))
    def allocate(self, tokens):
        free, shortage = self.manager.num_free, self.manager.shortage(tokens, now=True)
        table = self.manager.allocate(tokens)
        assert (table is None) == (shortage is not None) and (table is not None or self.manager.num_free == free)
        if table is not None:
            self.tables.append(table)
            self.written[table], self.promised[table] = [], tokens

    @rule(index=st.integers(0, 7), tokens=st.integers(0, 60))
    def extend(self, index, tokens):
        if (table := self.chosen(index)) is None:
            return
        free = self.manager.num_free
        if self.manager.extend(table, tokens):
            self.promised[table] = max(self.promised[table], tokens)
        else:
            assert self.manager.num_free == free

    @rule(index=st.integers(0, 7), tokens=st.just(1) | st.integers(1, 9))
    def advance(self, index, tokens):
        """A step within the promise: it cannot fail."""
        if (table := self.chosen(index)) is None:
            return
        start = len(self.written[table])
        if tokens == 1 and start == self.promised[table] and self.manager.extend(table, start + 1):  # as in decoding
            self.promised[table] += 1
        end = min(start + min(tokens, self.step_tokens), self.promised[table])
        if end <= start:
            return
        self.manager.take(table, end)
        self.manager.check_integrity()
        for position in range(start, end):
            self.written[table].append(next(self.values))
            for group in range(len(self.windows)):
                block = table.block_ids(group)[position // self.block_tokens]
                others = [t for t in self.tables if t is not table and block in t.block_ids(group)]
                assert not others, "a block that others own is written"
                self.cache[group, block, position % self.block_tokens] = self.written[table][position]
            self.read(table, position)
        self.manager.computed(table, end)

    @rule(index=st.integers(0, 7), tokens=st.integers(0, 60))
    def share(self, index, tokens):
        if (table := self.chosen(index)) is None:
            return
        tokens = min(tokens, len(self.written[table])) // self.block_tokens * self.block_tokens
        free = self.manager.num_free
        shared = self.manager.share(table, tokens)
        if shared is None:
            assert self.manager.num_free == free and any(self.windows)
            return
        self.tables.append(shared)
        self.written[shared], self.promised[shared] = self.written[table][:tokens], tokens

    @rule(index=st.integers(0, 7))
    def free(self, index):
        if (table := self.chosen(index)) is not None:
            self.manager.free(table)
            self.tables.remove(table)

    @invariant()
    def is_sound(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        assert self.manager.tables == set(self.tables)
        for table in self.tables:
            self.read(table, len(self.written[table]))

    def teardown(self):
        if hasattr(self, "manager"):
            for table in self.tables:
                self.manager.free(table)
            self.manager.check_integrity()
            assert self.manager.num_free == sum(self.num_blocks)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def one_pool(num_blocks, window=None):
    return BlockManager([Retention(window, 4, 8)], [num_blocks])


def test_a_freed_table_cannot_be_used():
    manager = one_pool(2)
    table = manager.allocate(4)
    manager.free(table)
    uses = (manager.extend, manager.take, manager.computed, manager.share)
    for use in (*(lambda use=use: use(table, 8) for use in uses), lambda: manager.free(table)):
        with pytest.raises(AssertionError, match="after it was freed"):
            use()


def test_only_whole_computed_blocks_are_shared():
    manager = one_pool(4)
    table = manager.allocate(8)
    manager.take(table, 6)
    manager.computed(table, 6)
    for tokens in (3, 8):
        with pytest.raises(ValueError, match=f"cannot share {tokens} tokens of 6"):
            manager.share(table, tokens)
    assert list(manager.share(table, 4).block_ids(0)) == list(table.block_ids(0))[:1]


def test_a_prefix_is_shared_while_its_window_is_there():
    manager = one_pool(20, window=6)
    table = manager.allocate(40)
    for end in (8, 16):
        manager.take(table, end)
        manager.computed(table, end)
    # the token at 16 reads from 11 on, that at 12 from 7 on, that at 8 from 3 on
    assert list(table.block_ids(0))[:2] == [NO_BLOCK] * 2
    assert manager.share(table, 8) is None and manager.share(table, 12) is None
    shared = manager.share(table, 16)
    assert shared.block_ids(0) == table.block_ids(0)
    manager.take(table, 24)
    manager.computed(table, 24)
    assert shared.num_held(0) == 2
    manager.check_integrity()


def test_a_promise_that_grows_inside_a_block_grows_the_claim():
    """The step may now be five tokens long, which straddle three blocks with their window; four lay in two."""
    manager = one_pool(20, window=2)
    table = manager.allocate(7)
    manager.take(table, 7)
    manager.computed(table, 7)
    assert manager.extend(table, 11)
    manager.take(table, 11)
    assert manager.extend(table, 12)
    manager.check_integrity()


def test_blocks_come_back_while_a_prompt_is_computed():
    """Two prompts of 400 tokens through a pool that holds neither."""
    manager = BlockManager([Retention(None, 4, 8), Retention(10, 4, 8)], [200, 12])
    bound = manager._pools[1].retention.most_blocks(0, 400)
    assert bound == 5
    tables = [manager.allocate(400), manager.allocate(400)]
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
def test_pools_fit_their_memory_and_use_it(groups, block_tokens, max_seqs, max_tokens, max_seq_len, budget):
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
