"""The scheduler against its invariants, over random traces of arrivals, answers and cancels, with any KV groups."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc.runtime.errors import PromptTooLong
from llmc.runtime.kv.blocks import NO_BLOCK, BlockManager
from llmc.runtime.kv.retention import Retention
from llmc.runtime.loop.request import FinishReason, Request, RequestState, TokenHistory
from llmc.runtime.loop.schedule import Batch, Chunk, Scheduler
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.row_sampling import RowSampling
from tests.runtime.engine_folders import Windows

# block_tokens, (window, blocks) of each group, max_batch, max_tokens, max_seq_len,
# (step, prompt, output) of each arrival, (step, index) of each cancellation
Trace = tuple[int, list[tuple[int | None, int]], int, int, int, list[tuple[int, int, int]], list[tuple[int, int]]]
TRACES = int(os.environ.get("LLMC_TEST_TRACES", "10000"))
ROW = RowSampling(SamplingParams(), 0, 1, ())


def request(arrival: int, prompt_len: int) -> Request:
    return Request(arrival, TokenHistory([arrival % 1000] * prompt_len), prompt_len, ROW)


def blocks(*num_blocks: int, block_tokens: int = 4, step_tokens: int = 32, windows: Windows = (None,)) -> BlockManager:
    return BlockManager([Retention(window, block_tokens, step_tokens) for window in windows], num_blocks)


class Cache:
    """What the device's pools would hold: group, block, slot -> (request, position); two writers are caught."""

    def __init__(self, block_tokens: int, windows: Windows) -> None:
        self.block_tokens = block_tokens
        self.windows = windows
        self.slots: dict[tuple[int, int, int], tuple[int, int]] = {}

    def place(self, chunk: Chunk, group: int, position: int) -> tuple[int, int, int]:
        block = chunk.blocks.block_ids(group)[position // self.block_tokens]
        assert block != NO_BLOCK, "a block that is needed was given back"
        return group, block, position % self.block_tokens

    def run(self, batch: Batch) -> None:
        written = set()
        for chunk in batch.chunks:
            end = chunk.start + chunk.count
            for group, window in enumerate(self.windows):
                for position in range(chunk.start, end):
                    slot = self.place(chunk, group, position)
                    assert slot not in written, "two writers of one slot in a step"
                    written.add(slot)
                    self.slots[slot] = chunk.request.arrival, position
                first = 0 if window is None else max(0, chunk.start - window + 1)
                for position in range(first, end):
                    slot = self.place(chunk, group, position)
                    assert self.slots[slot] == (chunk.request.arrival, position), "another request's position is read"
                behind = chunk.blocks.block_ids(group)[: first // self.block_tokens]
                assert set(behind) <= {NO_BLOCK}, "a block behind the window is held"


def least_blocks(window: int | None, block_tokens: int, max_tokens: int, length: int) -> int:
    """Counted out: the most blocks that the largest steps hold at once, whatever token the sequence has reached."""
    most = 0
    for start in range(length):
        end = min(length, start + max_tokens)
        first = 0 if window is None else max(0, start - window + 1)
        most = max(most, (end - 1) // block_tokens - first // block_tokens + 1)
    return most


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    block_tokens = draw(st.integers(1, 5))
    groups = draw(st.lists(st.tuples(st.none() | st.integers(1, 25), st.integers(2, 30)), min_size=1, max_size=3))
    max_batch = draw(st.integers(1, 6))
    max_tokens = draw(st.integers(max_batch, max_batch + 12))
    max_seq_len = draw(st.integers(2, 60))
    arrivals = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(1, 30)), max_size=10))
    cancels = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4))
    return block_tokens, groups, max_batch, max_tokens, max_seq_len, arrivals, cancels


def random_trace(rng: random.Random) -> Trace:
    """The same shapes as `traces`, without hypothesis' cost per example."""
    max_batch = rng.randint(1, 6)
    return (
        rng.randint(1, 5),
        [(rng.choice([None, rng.randint(1, 25)]), rng.randint(2, 30)) for _ in range(rng.randint(1, 3))],
        max_batch,
        rng.randint(max_batch, max_batch + 12),
        rng.randint(2, 60),
        [(rng.randint(0, 12), rng.randint(1, 30), rng.randint(1, 20)) for _ in range(rng.randint(0, 7))],
        [(rng.randint(0, 40), rng.randint(0, 9)) for _ in range(rng.randint(0, 4))],
    )


def test_many_random_traces_keep_the_invariants_and_end() -> None:
    rng = random.Random(2026)
    for _ in range(TRACES):
        check_trace(random_trace(rng))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_shrinkable_traces_keep_the_invariants_and_end(trace: Trace) -> None:
    check_trace(trace)


def check_trace(trace: Trace) -> None:
    block_tokens, groups, max_batch, max_tokens, max_seq_len, arrivals, cancels = trace
    windows, num_blocks = zip(*groups, strict=True)
    manager = blocks(*num_blocks, block_tokens=block_tokens, step_tokens=max_tokens, windows=windows)
    scheduler = Scheduler(manager, max_batch, max_tokens, max_seq_len)
    cache = Cache(block_tokens, windows)
    wanted: dict[Request, int] = {}
    requests: list[Request] = []
    step = 0
    pending = sorted(arrivals)
    work = sum(prompt + output for _, prompt, output in arrivals)
    while pending or not scheduler.idle:
        while pending and pending[0][0] <= step:
            _, prompt_len, output_len = pending.pop(0)
            one = request(len(requests), prompt_len)
            possible = prompt_len + 1 <= scheduler.max_len
            # what is refused could indeed need more blocks than there are, or is too long
            needed = [least_blocks(w, block_tokens, max_tokens, prompt_len + 1) for w in windows]
            assert not possible or all(n <= count for n, count in zip(needed, num_blocks, strict=True))
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
        for one in scheduler.running:
            for group, (window, _) in enumerate(groups):
                assert one.blocks is not None
                held = one.blocks.num_held(group)
                assert window is None or (held - 2) * block_tokens < window + max_tokens
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
    assert scheduler.blocks.num_free == sum(num_blocks)
    for one in requests:
        assert one.state is RequestState.FINISHED and one.blocks is None
        if one.finish_reason is FinishReason.LENGTH:
            assert one.num_output == wanted[one]
        else:
            assert one.finish_reason is FinishReason.CANCELLED


def drain(scheduler: Scheduler, outputs: int) -> list[list[tuple[int, int, int, int]]]:
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


def test_decode_comes_first_and_prompts_share_the_rest() -> None:
    scheduler = Scheduler(blocks(100), max_batch=3, max_tokens=8, max_seq_len=100)
    for arrival, prompt_len in enumerate((3, 12, 2)):
        scheduler.add(request(arrival, prompt_len))
    assert drain(scheduler, 3) == [
        [(0, 0, 3, True), (1, 0, 5, False)],
        [(0, 3, 1, True), (1, 5, 7, True)],
        [(0, 4, 1, True), (1, 12, 1, True), (2, 0, 2, True)],
        [(1, 13, 1, True), (2, 2, 1, True)],
        [(2, 3, 1, True)],
    ]


def test_admission_waits_for_blocks_and_keeps_the_order() -> None:
    scheduler = Scheduler(blocks(4), max_batch=4, max_tokens=32, max_seq_len=16)
    for arrival, prompt_len in enumerate((7, 9, 2)):
        scheduler.add(request(arrival, prompt_len))
    first = scheduler.schedule()
    # Request 2 would fit, but request 1 was there first: nobody overtakes, so nobody starves.
    assert [c.request.arrival for c in first.chunks] == [0]


def test_admission_counts_the_first_answer_token() -> None:
    scheduler = Scheduler(blocks(4), max_batch=4, max_tokens=32, max_seq_len=16)
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 12))  # fits three blocks, but its first answer token needs a fourth
    assert [c.request.arrival for c in scheduler.schedule().chunks] == [0]


def test_the_youngest_is_preempted_and_recomputed() -> None:
    scheduler = Scheduler(blocks(4, block_tokens=2), max_batch=2, max_tokens=8, max_seq_len=8)
    old, young = request(0, 3), request(1, 3)
    scheduler.add(old)
    scheduler.add(young)
    batches = drain(scheduler, 5)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    # The young one's answer so far is part of what is recomputed.
    assert (1, 0, 5, True) in [chunk for batch in batches for chunk in batch]
    assert young.num_output == old.num_output == 5


def test_impossible_prompts_are_refused_with_the_figures() -> None:
    scheduler = Scheduler(blocks(4), max_batch=1, max_tokens=8, max_seq_len=100)
    with pytest.raises(PromptTooLong, match="16 tokens and needs 5 KV blocks; the pool has 4 of 4"):
        scheduler.add(request(0, 16))
    scheduler.add(request(0, 15))
    scheduler = Scheduler(blocks(40), max_batch=1, max_tokens=8, max_seq_len=100)
    with pytest.raises(PromptTooLong, match=r"100 tokens.*max_seq_len is 100"):
        scheduler.add(request(0, 100))
    scheduler.add(request(0, 99))


def test_single_tokens_of_which_one_samples_nothing_are_no_decode_step() -> None:
    scheduler = Scheduler(blocks(100), max_batch=2, max_tokens=2, max_seq_len=100)
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
