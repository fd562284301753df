"""Scheduler and block manager against their invariants, over random traces of arrivals, answers and cancels."""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc.runtime.blocks import BlockManager
from llmc.runtime.errors import PromptTooLong
from llmc.runtime.request import FinishReason, Request, RequestState, TokenHistory
from llmc.runtime.row_sampling import RowSampling
from llmc.runtime.sampling import SamplingParams
from llmc.runtime.schedule import Scheduler

TRACES = int(os.environ.get("LLMC_TEST_TRACES", "10000"))
ROW = RowSampling(SamplingParams(), 0, 1, ())


def request(arrival, prompt_len):
    return Request(arrival, TokenHistory([arrival % 1000] * prompt_len), prompt_len, ROW)


class Cache:
    """What the device's pool would hold: block -> slot -> (request, position, token); two writers are caught."""

    def __init__(self, block_tokens):
        self.block_tokens = block_tokens
        self.slots = {}

    def run(self, batch):
        written = set()
        for chunk in batch.chunks:
            ids = chunk.blocks.block_ids
            for position in range(chunk.start, chunk.start + chunk.count):
                slot = ids[position // self.block_tokens], position % self.block_tokens
                assert slot not in written, "two writers of one slot in a step"
                written.add(slot)
                self.slots[slot] = chunk.request.arrival, position
            for position in range(chunk.start + chunk.count):
                slot = ids[position // self.block_tokens], position % self.block_tokens
                assert self.slots[slot] == (chunk.request.arrival, position), "a position of another request is read"


@st.composite
def traces(draw):
    block_tokens = draw(st.integers(1, 5))
    num_blocks = draw(st.integers(2, 30))
    max_batch = draw(st.integers(1, 6))
    max_tokens = draw(st.integers(max_batch, max_batch + 12))
    max_seq_len = draw(st.integers(2, 60))
    arrivals = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(1, 30)), max_size=10))
    cancels = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4))
    return block_tokens, num_blocks, max_batch, max_tokens, max_seq_len, arrivals, cancels


def random_trace(rng):
    """The same shapes as `traces`, without hypothesis' cost per example."""
    max_batch = rng.randint(1, 6)
    return (
        rng.randint(1, 5),
        rng.randint(2, 30),
        max_batch,
        rng.randint(max_batch, max_batch + 12),
        rng.randint(2, 60),
        [(rng.randint(0, 12), rng.randint(1, 30), rng.randint(1, 20)) for _ in range(rng.randint(0, 7))],
        [(rng.randint(0, 40), rng.randint(0, 9)) for _ in range(rng.randint(0, 4))],
    )


def test_many_random_traces_keep_the_invariants_and_end():
    rng = random.Random(2026)
    for _ in range(TRACES):
        check_trace(random_trace(rng))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_shrinkable_traces_keep_the_invariants_and_end(trace):
    check_trace(trace)


def check_trace(trace):
    block_tokens, num_blocks, max_batch, max_tokens, max_seq_len, arrivals, cancels = trace
    scheduler = Scheduler(BlockManager(num_blocks, block_tokens), max_batch, max_tokens, max_seq_len)
    cache = Cache(block_tokens)
    wanted, requests = {}, []
    step = 0
    pending = sorted(arrivals)
    work = sum(prompt + output for _, prompt, output in arrivals)
    while pending or not scheduler.idle:
        while pending and pending[0][0] <= step:
            _, prompt_len, output_len = pending.pop(0)
            one = request(len(requests), prompt_len)
            possible = prompt_len + 1 <= min(max_seq_len, num_blocks * block_tokens)
            if not possible:
                with pytest.raises(PromptTooLong):
                    scheduler.add(one)
                continue
            scheduler.add(one)
            wanted[one] = min(output_len, scheduler.max_len - prompt_len)
            requests.append(one)
        for at, index in cancels:
            if at == step and index < len(requests):
                scheduler.finish(requests[index], FinishReason.CANCELLED)
        decoding = [r for r in scheduler.running if r.num_pending == 1]
        batch = scheduler.schedule()
        assert batch.num_tokens <= max_tokens and len(batch.chunks) <= max_batch
        assert len({id(c.request) for c in batch.chunks}) == len(batch.chunks)
        scheduled = [c.request for c in batch.chunks]
        for one in decoding:  # decode first: a decoding request runs now unless it was preempted
            assert one in scheduled or one.state is RequestState.WAITING
        if scheduler.running:
            oldest = min(scheduler.running, key=lambda r: r.arrival)
            assert oldest in scheduled, "the oldest request must advance in every step"
        cache.run(batch)
        scheduler.computed(batch)
        scheduler.check_integrity()
        for chunk in batch.chunks:
            if chunk.samples:
                chunk.request.tokens.append(0)
                if chunk.request.num_output == wanted[chunk.request]:
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
        scheduler.check_integrity()
        step += 1
        assert step < 50 + work * (2 + len(arrivals)), "no progress"
    assert scheduler.blocks.num_free == num_blocks
    for one in requests:
        assert one.state is RequestState.FINISHED and one.blocks is None
        if one.finish_reason is FinishReason.LENGTH:
            assert one.num_output == wanted[one]
        else:
            assert one.finish_reason is FinishReason.CANCELLED


def drain(scheduler, outputs):
    """Run steps until idle; each request makes `outputs` tokens. Returns the batches."""
    batches = []
    while not scheduler.idle:
        batch = scheduler.schedule()
        batches.append([(c.request.arrival, c.start, c.count, c.samples) for c in batch.chunks])
        scheduler.computed(batch)
        for chunk in batch.chunks:
            if chunk.samples:
                chunk.request.tokens.append(0)
                if chunk.request.num_output == outputs:
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
    return batches


def test_decode_comes_first_and_prompts_share_the_rest():
    scheduler = Scheduler(BlockManager(100, 4), max_batch=3, max_tokens=8, max_seq_len=100)
    for arrival, prompt_len in enumerate((3, 12, 2)):
        scheduler.add(request(arrival, prompt_len))
    assert drain(scheduler, 3) == [
        [(0, 0, 3, True), (1, 0, 5, False)],
        [(0, 3, 1, True), (1, 5, 7, True)],
        [(0, 4, 1, True), (1, 12, 1, True), (2, 0, 2, True)],
        [(1, 13, 1, True), (2, 2, 1, True)],
        [(2, 3, 1, True)],
    ]


def test_admission_waits_for_blocks_and_keeps_the_order():
    scheduler = Scheduler(BlockManager(4, 4), max_batch=4, max_tokens=32, max_seq_len=16)
    for arrival, prompt_len in enumerate((7, 9, 2)):
        scheduler.add(request(arrival, prompt_len))
    first = scheduler.schedule()
    # Request 2 would fit, but request 1 was there first: nobody overtakes, so nobody starves.
    assert [c.request.arrival for c in first.chunks] == [0]


def test_admission_counts_the_first_answer_token():
    scheduler = Scheduler(BlockManager(4, 4), max_batch=4, max_tokens=32, max_seq_len=16)
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 12))  # fits three blocks, but its first answer token needs a fourth
    assert [c.request.arrival for c in scheduler.schedule().chunks] == [0]


def test_the_youngest_is_preempted_and_recomputed():
    scheduler = Scheduler(BlockManager(4, 2), max_batch=2, max_tokens=8, max_seq_len=8)
    old, young = request(0, 3), request(1, 3)
    scheduler.add(old)
    scheduler.add(young)
    batches = drain(scheduler, 5)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    # The young one's answer so far is part of what is recomputed.
    assert (1, 0, 5, True) in [chunk for batch in batches for chunk in batch]
    assert young.num_output == old.num_output == 5


def test_impossible_prompts_are_refused_with_the_figures():
    scheduler = Scheduler(BlockManager(4, 4), max_batch=1, max_tokens=8, max_seq_len=100)
    with pytest.raises(PromptTooLong, match="16 tokens and needs 5 KV blocks; the pool has 4 of 4"):
        scheduler.add(request(0, 16))
    scheduler.add(request(0, 15))
    scheduler = Scheduler(BlockManager(40, 4), max_batch=1, max_tokens=8, max_seq_len=100)
    with pytest.raises(PromptTooLong, match=r"100 tokens.*max_seq_len is 100"):
        scheduler.add(request(0, 100))
    scheduler.add(request(0, 99))


operations = st.lists(
    st.tuples(st.sampled_from(["allocate", "extend", "share", "free"]), st.integers(0, 7), st.integers(0, 40)),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), operations)
def test_blocks_are_never_lost_or_held_twice(num_blocks, block_tokens, steps):
    manager = BlockManager(num_blocks, block_tokens)
    tables = []
    for operation, index, tokens in steps:
        free = manager.num_free
        table = tables[index % len(tables)] if tables else None
        if operation == "allocate":
            made = manager.allocate(tokens)
            assert (made is None) == (manager.blocks_for(tokens) > free)
            tables += [made] if made is not None else []
        elif table is None:
            continue
        elif operation == "extend":
            before = list(table.block_ids)
            grown = manager.extend(table, tokens)
            assert list(table.block_ids)[: len(before)] == before
            assert not grown or len(table) * block_tokens >= tokens
            assert grown or (manager.num_free == free and list(table.block_ids) == before)
        elif operation == "share":
            whole = min(tokens // block_tokens, len(table)) * block_tokens
            tables.append(manager.share(table, whole))
            assert manager.num_free == free
        else:
            manager.free(table)
            tables.remove(table)
        manager.check_integrity()
    for table in tables:
        manager.free(table)
    manager.check_integrity()
    assert manager.num_free == num_blocks


def test_a_freed_table_cannot_be_used():
    manager = BlockManager(2, 4)
    table = manager.allocate(4)
    manager.free(table)
    for use in (lambda: manager.extend(table, 8), lambda: manager.free(table), lambda: manager.share(table, 0)):
        with pytest.raises(AssertionError, match="after it was freed"):
            use()


def test_partial_blocks_are_not_shared():
    manager = BlockManager(2, 4)
    with pytest.raises(ValueError, match="cannot share 3 tokens"):
        manager.share(manager.allocate(8), 3)


def test_single_tokens_of_which_one_samples_nothing_are_no_decode_step():
    scheduler = Scheduler(BlockManager(100, 4), max_batch=2, max_tokens=2, max_seq_len=100)
    short, long = request(0, 2), request(1, 50)
    scheduler.add(short)
    scheduler.computed(scheduler.schedule())
    short.tokens.append(7)
    assert scheduler.schedule().decode_only
    scheduler.add(long)
    batch = scheduler.schedule()
    assert [(chunk.request, chunk.count, chunk.samples) for chunk in batch.chunks] == [
        (short, 1, True),
        (long, 1, False),
    ]
    assert not batch.decode_only
