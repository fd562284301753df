"""The scheduler against its invariants, over random traces of arrivals, answers and cancels, with any KV groups."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from llmc.runtime.errors import PromptTooLong
from llmc.runtime.kv.blocks import NO_BLOCK, BlockCopy
from llmc.runtime.kv.swap import CopyKind
from llmc.runtime.loop.batch import Batch, Chunk
from llmc.runtime.loop.request import FinishReason, Request, RequestState
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.loop.urgency import SPARED
from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget, SchedulingOptions
from tests.runtime.engine_folders import Windows
from tests.runtime.scheduling import blocks, request

CLASSES = list(LatencyClass)


@dataclass(frozen=True)
class Arrival:
    """Of a trace: the step in which it comes, what it asks, and when it is cancelled, if it is."""

    step: int
    prompt_len: int
    output_len: int
    latency: LatencyClass
    priority: int
    cancelled: int | None
    family: int  # of prompts that begin alike; 0: alone


@dataclass(frozen=True)
class Trace:
    block_tokens: int
    groups: list[tuple[int | None, int]]  # window, blocks
    max_batch: int
    max_tokens: int
    max_seq_len: int
    options: SchedulingOptions
    arrivals: list[Arrival]
    seed: int  # of how long steps take
    slots: int  # for blocks of who is preempted


class Cache:
    """What the device's pools would hold: group, block, slot -> what the keys and values there depend on, which is the
    root and all ids so far. Two writers of a slot in a step are caught, and so is a shared block that is written."""

    def __init__(self, block_tokens: int, windows: Windows) -> None:
        self.block_tokens = block_tokens
        self.windows = windows
        self.slots: dict[tuple[int, int, int], int] = {}
        self.contents: dict[Request, list[int]] = {}

    def place(self, chunk: Chunk, group: int, position: int) -> tuple[int, int, int]:
        block = chunk.blocks.block_ids(group)[position // self.block_tokens]
        assert block != NO_BLOCK, "a block that is needed was given back"
        return group, block, position % self.block_tokens

    def content(self, one: Request) -> list[int]:
        """Of each position."""
        known = self.contents.setdefault(one, [hash(one.prefix.root if one.prefix else one.arrival)])
        for token in one.tokens.ids[len(known) - 1 :].tolist():
            known.append(hash((known[-1], token)))
        return known[1:]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Slots of host memory are blocks -2 and below."""
        for copy in copies:
            source = -2 - copy.source if copy.kind is CopyKind.IN else copy.source
            target = -2 - copy.target if copy.kind is CopyKind.OUT else copy.target
            for slot in range(self.block_tokens):
                if (content := self.slots.get((copy.group, source, slot))) is not None:
                    self.slots[copy.group, target, slot] = content

    def run(self, batch: Batch) -> None:
        written = set()
        for chunk in batch.chunks:
            end, content = chunk.start + chunk.count, self.content(chunk.request)
            for group in range(len(self.windows)):
                for position in range(chunk.start, end):
                    slot = self.place(chunk, group, position)
                    assert slot not in written, "two writers of one slot in a step"
                    written.add(slot)
                    self.slots[slot] = content[position]
        for chunk in batch.chunks:
            end, content = chunk.start + chunk.count, self.content(chunk.request)
            for group, window in enumerate(self.windows):
                first = 0 if window is None else max(0, chunk.start - window + 1)
                for position in range(first, end):
                    slot = self.place(chunk, group, position)
                    assert self.slots[slot] == content[position], "what is read is another sequence's"
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


def random_trace(rng: random.Random) -> Trace:
    """Small pools and many requests of all classes, so that most traces preempt and many starve someone, if anything
    can."""
    max_batch = rng.randint(1, 6)
    # targets that are missed by all, met by all, and in between: a step takes about 0.01
    targets = {
        one.value: LatencyTarget(10 ** rng.uniform(-2, 1), 10 ** rng.uniform(-3, 0), 1.5) for one in LatencyClass
    }
    return Trace(
        rng.randint(1, 5),
        [(rng.choice([None, rng.randint(1, 25)]), rng.randint(2, 30)) for _ in range(rng.randint(1, 3))],
        max_batch,
        rng.randint(max_batch, max_batch + 12),
        rng.randint(2, 60),
        SchedulingOptions(targets, 2048, 1 << 20, rng.random() < 0.9, rng.random() < 0.9, paged=rng.random() < 0.9),
        [
            Arrival(
                rng.randint(0, 12),
                rng.randint(1, 30),
                rng.randint(1, 20),
                rng.choice(CLASSES),
                rng.choice([0, 0, 0, 3, -1]),
                rng.randint(0, 40) if rng.random() < 0.2 else None,
                rng.randint(0, 2),
            )
            for _ in range(rng.randint(0, 7))
        ],
        rng.randint(0, 1 << 30),
        rng.choice([0, rng.randint(1, 12)]),
    )


def check_traces(count: int, seed: int) -> None:
    rng, preempted, cached, swapped = random.Random(seed), 0, 0, 0
    for _ in range(count):
        trace = random_trace(rng)
        run = Run(trace)
        try:
            run.check()
        except BaseException:
            print(trace)
            raise
        preempted += run.scheduler.num_preemptions
        cached += run.scheduler.blocks.counters.tokens_saved
        swapped += run.scheduler.blocks.counters.swapped_in
    assert preempted > count / 10 and cached > count and swapped > count / 100


class Run:
    """A trace against its invariants, with a clock that goes on by what a step's work costs, and sometimes stands."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.windows, self.num_blocks = zip(*trace.groups, strict=True)
        self.rng = random.Random(trace.seed)
        self.now = 0.0
        self.scheduler = Scheduler(
            blocks(
                *self.num_blocks,
                block_tokens=trace.block_tokens,
                step_tokens=trace.max_tokens,
                windows=self.windows,
                slots=trace.slots,
            ),
            trace.max_batch,
            trace.max_tokens,
            trace.max_seq_len,
            trace.options,
            clock=lambda: self.now,
        )
        self.cache = Cache(trace.block_tokens, self.windows)
        self.requests: dict[Request, Arrival] = {}
        self.answered: list[Request] = []  # in the last step: they decode
        self.most_steps = 50 + sum(a.prompt_len + a.output_len for a in trace.arrivals) * (2 + len(trace.arrivals))

    def check(self) -> None:
        """Runs to the end."""
        pending = sorted(self.trace.arrivals, key=lambda a: a.step)
        step = 0
        while pending or not self.scheduler.idle:
            while pending and pending[0].step <= step:
                self.arrive(pending.pop(0))
            for one, arrival in self.requests.items():
                if arrival.cancelled == step:
                    self.scheduler.finish(one, FinishReason.CANCELLED)
            self.step()
            step += 1
            assert step < self.most_steps, "no progress"
        assert self.scheduler.blocks.num_free == sum(self.num_blocks) and not self.scheduler.blocks._swap.kept
        for one, arrival in self.requests.items():
            assert one.state is RequestState.FINISHED and one.blocks is None
            if one.finish_reason is FinishReason.LENGTH:
                assert one.num_output == self.wanted(one)
            else:
                assert one.finish_reason is FinishReason.CANCELLED and arrival.cancelled is not None
        finished = [one.finish_reason for one in self.requests].count(FinishReason.LENGTH)
        assert sum(good.finished for good in self.scheduler.goodput.by_class.values()) == finished

    def arrive(self, arrival: Arrival) -> None:
        prompt = [min(position, arrival.prompt_len // 2) for position in range(arrival.prompt_len)]
        root = bytes([arrival.family]) if arrival.family else None
        one = request(len(self.requests), prompt, arrival.latency, arrival.priority, root)
        if arrival.prompt_len + 1 <= self.scheduler.max_len:
            # what is taken needs no more blocks than there are
            block_tokens, most = self.trace.block_tokens, self.trace.max_tokens
            needed = [least_blocks(w, block_tokens, most, arrival.prompt_len + 1) for w in self.windows]
            assert all(n <= count for n, count in zip(needed, self.num_blocks, strict=True))
            self.scheduler.add(one)
            self.requests[one] = arrival
            return
        with pytest.raises(PromptTooLong):
            self.scheduler.add(one)

    def wanted(self, one: Request) -> int:
        return min(self.requests[one].output_len, self.scheduler.max_len - one.prompt_len)

    def step(self) -> None:
        trace, scheduler = self.trace, self.scheduler
        ran = {one: one.num_preemptions for one in scheduler.running}
        decoding = [one for one in self.answered if one in ran]
        batch = scheduler.schedule()
        scheduled = [c.request for c in batch.chunks]
        assert scheduled or scheduler.idle
        assert batch.num_tokens <= trace.max_tokens and len(scheduled) <= trace.max_batch
        assert len(set(scheduled)) == len(scheduled)
        decoding = [one for one in decoding if one.num_preemptions == ran[one]]  # or else it may be a prompt again
        whole = not trace.options.chunked and any(chunk.request not in decoding for chunk in batch.chunks)
        for one in decoding:  # decode first: it gets its token now unless it was preempted
            assert one in scheduled or whole
        self.check_who_gave_way(ran)
        self.look(batch)
        self.cache.copy(scheduler.blocks.take_copies())
        self.cache.run(batch)
        for one in scheduler.running:
            for group, window in enumerate(self.windows):
                assert one.blocks is not None
                held = one.blocks.num_held(group)
                assert window is None or (held - 2) * trace.block_tokens < window + trace.max_tokens
        self.now += 0.005 + 0.001 * batch.num_tokens
        if self.rng.random() < 0.05:
            self.now += self.rng.uniform(0, 3)
        scheduler.computed(batch)
        self.answered = [chunk.request for chunk in batch.chunks if chunk.samples]
        for chunk in batch.chunks:
            if chunk.samples:
                chunk.request.tokens.append(chunk.request.arrival % 2)
                if chunk.request.num_output == self.wanted(chunk.request):
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
        if scheduler.idle or self.rng.random() < 0.25:
            scheduler.check_integrity()

    def look(self, batch: Batch) -> None:
        """At what the device would get."""

    def check_who_gave_way(self, ran: Mapping[Request, int]) -> None:
        """The oldest of the most urgent class stays; an elder stays before a younger one of its class."""
        if ran:
            all_run = {*ran, *self.scheduler.running, *self.scheduler.waiting}
            first = min(all_run, key=lambda r: (r.rank, r.arrival))
            if first in ran and not any(one.num_preemptions >= SPARED for one in ran if one.rank != first.rank):
                assert first.num_preemptions == ran[first]
        left = [one for one in ran if one.num_preemptions > ran[one]]
        for one in left:
            assert all(other.rank != one.rank or other.arrival < one.arrival or other in left for other in ran)
