"""What the scheduler puts into a step: who comes first, who waits, who is preempted, who is refused."""

from __future__ import annotations

import pytest

from llmc.runtime.errors import PromptTooLong
from llmc.runtime.loop.request import FinishReason, RequestState
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.step.scheduling import LatencyClass
from tests.runtime.scheduling import blocks, request


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
    scheduler = Scheduler(blocks(100), max_batch=3, max_tokens=8, max_seq_len=100, clock=lambda: 0.0)
    for arrival, prompt_len in enumerate((3, 12, 2)):
        scheduler.add(request(arrival, prompt_len, latency=LatencyClass.BATCH))  # bears any step
    assert drain(scheduler, 3) == [
        [(0, 0, 3, True), (1, 0, 5, False)],
        [(0, 3, 1, True), (1, 5, 7, True)],
        [(0, 4, 1, True), (1, 12, 1, True), (2, 0, 2, True)],
        [(2, 2, 1, True), (1, 13, 1, True)],  # the last takes the place of the one that ended
        [(2, 3, 1, True)],
    ]


def test_admission_waits_for_blocks_and_keeps_the_order() -> None:
    scheduler = Scheduler(blocks(4), max_batch=4, max_tokens=32, max_seq_len=16, clock=lambda: 0.0)
    for arrival, prompt_len in enumerate((7, 9, 2)):
        scheduler.add(request(arrival, prompt_len, priority=-arrival))
    first = scheduler.schedule()
    # Request 2 would fit, but request 1 goes first: nobody overtakes for being small, so nobody starves.
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


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    """Those behind wait for the first one's blocks, and others go ahead of them meanwhile."""
    scheduler = Scheduler(blocks(100), max_batch=8, max_tokens=8, max_seq_len=100, clock=lambda: 0.0)
    prompt = list(range(18))
    alike = [request(arrival, prompt, root=b"same") for arrival in range(4)]
    salted, other = request(4, prompt, root=b"salt"), request(5, 4)
    for one in (*alike, salted, other):
        scheduler.add(one)
    computed: list[tuple[int, int]] = []
    while not scheduler.idle:
        batch = scheduler.schedule()
        scheduler.blocks.take_copies()
        computed += [(c.request.arrival, c.count) for c in batch.chunks if c.start < c.request.prompt_len]
        scheduler.computed(batch)
        scheduler.check_integrity()
        for chunk in batch.chunks:
            if chunk.samples:
                chunk.request.tokens.append(chunk.request.arrival)
                if chunk.request.num_output == 9:
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
    of = {one.arrival: sum(count for arrival, count in computed if arrival == one.arrival) for one in alike}
    assert of == {0: 18, 1: 1, 2: 1, 3: 1} and [one.num_cached for one in alike] == [0, 17, 17, 17]
    assert sum(count for arrival, count in computed if arrival == 4) == 18 and salted.num_cached == 0


def test_nobody_waits_for_blocks_that_a_less_urgent_one_computes() -> None:
    """It would get on as slowly as that one."""
    prompt = list(range(30))
    for latency, priority, waits in (
        (LatencyClass.INTERACTIVE, 0, False),
        (LatencyClass.STANDARD, 5, False),
        (LatencyClass.STANDARD, 0, True),
        (LatencyClass.BATCH, 0, True),
    ):
        scheduler = Scheduler(blocks(100), max_batch=2, max_tokens=8, max_seq_len=100, clock=lambda: 0.0)
        scheduler.add(request(0, prompt, root=b"same"))
        scheduler.computed(scheduler.schedule())
        late = request(1, prompt, latency, priority, root=b"same")
        scheduler.add(late)
        scheduler.computed(scheduler.schedule())
        assert (late.state is RequestState.WAITING) == waits, latency
