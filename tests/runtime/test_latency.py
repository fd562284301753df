"""Latency classes: who goes first, how long steps may be, whose place is taken, and that nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from llmc.runtime.errors import QueueFull
from llmc.runtime.loop.batch import Batch
from llmc.runtime.loop.request import FinishReason, Request, RequestState
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.loop.step_time import Work
from llmc.runtime.loop.urgency import SPARED, TURN
from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget, SchedulingOptions
from tests.runtime.scheduling import blocks, request

INTERACTIVE, STANDARD, BATCH = LatencyClass
COSTS = (0.010, 0.002, 0.001, 1e-7, 0.0005, 1e-8)  # of the machine simulated here; see StepTimes


@dataclass
class Served:
    """A scheduler over a machine of `COSTS` and its clock. `outputs`: tokens that each request answers."""

    scheduler: Scheduler
    clock: list[float]
    outputs: dict[Request, int] = field(default_factory=dict)
    arrivals: int = 0

    def add(self, prompt_len: int, outputs: int, latency: LatencyClass = STANDARD, priority: int = 0) -> Request:
        one = request(self.arrivals, prompt_len, latency, priority)
        self.arrivals += 1
        self.scheduler.add(one)
        self.outputs[one] = outputs
        return one

    def step(self) -> tuple[Batch, float]:
        batch, work = self.scheduler.schedule(), Work()
        for chunk in batch.chunks:
            if chunk.count == chunk.samples:
                work = Work(work.rows + 1, work.positions + chunk.start, work.tokens, work.attended)
            else:
                work = work.and_prompt(chunk.start, chunk.count)
        seconds = sum(c * f for c, f in zip(COSTS, work.features, strict=True))
        self.clock[0] += seconds
        self.scheduler.computed(batch)
        self.scheduler.check_integrity()
        for chunk in batch.chunks:
            if chunk.samples:
                chunk.request.tokens.append(0)
                if chunk.request.num_output == self.outputs[chunk.request]:
                    self.scheduler.finish(chunk.request, FinishReason.LENGTH)
        return batch, seconds

    def until(self, done: Callable[[], bool]) -> list[float]:
        """Steps until it is so. Returns their seconds."""
        seconds = []
        while not done():
            seconds.append(self.step()[1])
            assert len(seconds) < 100_000
        return seconds


def served(
    num_blocks: int = 10_000, max_batch: int = 8, max_tokens: int = 512, options: SchedulingOptions | None = None
) -> Served:
    clock = [0.0]
    manager = blocks(num_blocks, block_tokens=16, step_tokens=max_tokens)
    return Served(Scheduler(manager, max_batch, max_tokens, 8192, options, lambda: clock[0]), clock)


def finished(one: Request) -> Callable[[], bool]:
    return lambda: one.state is RequestState.FINISHED


def learned() -> Served:
    """With step times that it has learned, and nothing to do."""
    engine = served()
    for prompt_len in (40, 500, 3000):
        for _ in range(4):
            engine.add(prompt_len, 20)
        engine.until(lambda: engine.scheduler.idle)
    return engine


def decoding(engine: Served, latency: LatencyClass, count: int = 7) -> list[Request]:
    those = [engine.add(20, 5000, latency) for _ in range(count)]
    engine.until(lambda: all(one.num_output > 20 for one in those))
    return those


@pytest.mark.parametrize("latency", [INTERACTIVE, STANDARD])
def test_a_long_prompt_lengthens_the_others_steps_as_far_as_their_class_bears_it(latency: LatencyClass) -> None:
    engine = learned()
    decoding(engine, latency)
    plain = engine.step()[1]
    long = engine.add(7900, 1)
    steps = engine.until(finished(long))
    slowdown = engine.scheduler.options.targets[latency.value].slowdown
    assert max(steps) < 1.1 * slowdown * plain
    assert sorted(steps)[len(steps) // 2] > 0.8 * slowdown * plain, "the budget is not used"


@pytest.mark.parametrize("latency", [INTERACTIVE, STANDARD])
def test_a_short_prompt_takes_what_was_spared_and_hardly_longer_than_alone(latency: LatencyClass) -> None:
    """In steps of at most the target for a token."""
    target = served().scheduler.options.targets[latency.value]
    alone, engine = learned(), learned()
    decoding(engine, latency)
    steps = engine.until(finished(engine.add(200, 1)))
    assert len(steps) < 6 and max(steps) < 1.1 * target.tpot
    assert sum(steps) < 2 * sum(alone.until(finished(alone.add(200, 1))))


@pytest.mark.parametrize("latency", [INTERACTIVE, STANDARD])
def test_what_was_spared_is_spent_once(latency: LatencyClass) -> None:
    """Of short prompts that come one after the other, the steps are in the mean as long as the class bears."""
    engine = learned()
    those = decoding(engine, latency)
    plain = engine.step()[1]
    steps: list[float] = []
    while len(steps) < 150:
        steps += engine.until(finished(engine.add(200, 1)))
    assert all(one.state is RequestState.RUNNING for one in those)
    target = engine.scheduler.options.targets[latency.value]
    longest = plain * target.slowdown
    spared = 5 * target.tpot
    assert 0.8 * longest < sum(steps) / len(steps) < 1.1 * longest + spared / len(steps)


def test_a_long_prompt_leaves_what_was_spared_to_short_ones() -> None:
    engine = learned()
    decoding(engine, STANDARD, 6)
    long = engine.add(7900, 1)
    for _ in range(100):
        engine.step()
    short = engine.add(100, 1)
    steps = engine.until(finished(short))
    assert long.first_token is None and len(steps) < 4 and sum(steps) < 0.2


def test_beside_the_batch_class_a_prompt_takes_hardly_longer_than_alone() -> None:
    alone, engine = learned(), learned()
    decoding(engine, BATCH)
    times = []
    for one in (alone, engine):
        long = one.add(7900, 1)
        times.append(sum(one.until(finished(long))))
    assert times[1] < 1.5 * times[0]


def test_what_meets_the_target_of_a_prompt_is_given_to_it_if_the_others_can_spare_it() -> None:
    """A prompt that would be late beside slowed steps gets steps as long as the target for a token."""
    targets = {
        "interactive": LatencyTarget(2.0, 0.05, 1.3),
        "standard": LatencyTarget(ttft=9.0, tpot=0.2, slowdown=1.3),
    }
    options = SchedulingOptions(targets)
    engine = served(options=options)
    for _ in range(8):
        engine.add(700, 30)
    engine.until(lambda: engine.scheduler.idle)
    decoding(engine, STANDARD)
    urgent = engine.add(2000, 1, INTERACTIVE)
    engine.until(finished(urgent))
    assert urgent.first_token is not None and urgent.first_token - urgent.submitted < 2.0
    hopeless = engine.add(7900, 1, INTERACTIVE)  # late in any case: the others are not slowed in vain
    assert max(engine.until(finished(hopeless))[2:-2]) < 0.04


def test_short_prompts_do_not_wait_for_a_long_one_and_it_does_not_starve() -> None:
    """The long one cannot be in time, those behind it can, and come as fast as they are answered."""
    engine, late = learned(), 0
    long = engine.add(8000, 1, INTERACTIVE)
    short: list[Request] = []
    while long.state is not RequestState.FINISHED:
        if not short or short[-1].state is RequestState.FINISHED:
            short.append(engine.add(400, 1, INTERACTIVE))
        engine.step()
        assert len(short) < 1000
    for one in short[:-1]:
        assert one.first_token is not None
        late += one.first_token - one.submitted > 1.0
    assert len(short) > 10 and late == 0


def test_a_higher_priority_goes_first_within_its_class_alone() -> None:
    engine = served(max_batch=1)
    engine.add(10, 5)
    engine.step()
    batch, low, high = engine.add(10, 1, BATCH, priority=9), engine.add(10, 1), engine.add(10, 1, priority=1)
    order: list[Request] = []
    while not engine.scheduler.idle:
        order += [chunk.request for chunk in engine.step()[0].chunks if chunk.request in (batch, low, high)]
    assert order == [high, low, batch]


def test_a_request_that_is_more_urgent_takes_the_place_of_the_youngest_of_the_least_urgent() -> None:
    engine = served(max_batch=3)
    running = [engine.add(10, 50, latency) for latency in (BATCH, BATCH, STANDARD)]
    engine.until(lambda: all(one.num_output > 3 for one in running))
    urgent = engine.add(10, 2, INTERACTIVE)
    batch, _ = engine.step()
    assert urgent in [chunk.request for chunk in batch.chunks]
    assert [one.num_preemptions for one in running] == [0, 1, 0]
    assert engine.add(10, 2, BATCH).state is RequestState.WAITING  # of the same class nobody gives way
    engine.until(lambda: engine.scheduler.idle)
    assert all(one.num_output == 50 for one in running)


def test_it_takes_blocks_as_well_and_the_oldest_of_the_most_urgent_class_always_advances() -> None:
    rng = random.Random(8)
    engine = served(num_blocks=40, max_batch=6)
    for _ in range(60):
        engine.add(rng.randint(1, 300), rng.randint(1, 200), rng.choice([INTERACTIVE, STANDARD, BATCH]))
    while not engine.scheduler.idle:
        before = engine.scheduler.running
        first = min(before, key=lambda one: (one.rank, one.arrival), default=None)
        had = first.num_computed if first is not None else 0
        engine.step()
        if first is not None and not any(one.num_preemptions >= SPARED for one in before):
            newer = [one for one in engine.scheduler.running if one.rank < first.rank]
            assert newer or first.num_computed > had or first.state is RequestState.FINISHED
    assert engine.scheduler.num_preemptions > 20


@pytest.mark.parametrize("seed", range(4))
def test_nobody_starves_whatever_comes(seed: int) -> None:
    """A flood that is more urgent in every way, for ever: the batch request is answered within so many steps."""
    rng = random.Random(seed)
    patient = SchedulingOptions({"batch": LatencyTarget(ttft=1e6, tpot=1e6, slowdown=9)})  # never due
    engine = served(num_blocks=60, max_batch=4, max_tokens=64, options=patient)
    outputs, longest = 8, 200
    victims = [engine.add(rng.randint(1, 150), outputs, BATCH, priority=-5) for _ in range(3)]
    # The oldest has every TURN-th choice, and each of the flood is done within so many steps of a prompt and an answer;
    # preempted SPARED times it is spared.
    per_request = TURN * longest // 16 + outputs
    bound = len(victims) * (SPARED + 1) * TURN * engine.scheduler.max_batch * per_request
    steps = 0
    while any(one.state is not RequestState.FINISHED for one in victims):
        while len(engine.scheduler.waiting) < 12:
            latency = INTERACTIVE if rng.random() < 0.8 else STANDARD
            engine.add(rng.randint(1, longest), outputs, latency, priority=rng.randint(0, 9))
        engine.step()
        steps += 1
        assert steps < bound
    assert sum(one.num_preemptions for one in victims) > 0


def test_goodput_counts_those_that_met_both_targets() -> None:
    targets = {"standard": LatencyTarget(ttft=0.5, tpot=0.015, slowdown=2.0)}
    engine = served(options=SchedulingOptions(targets))
    engine.add(100, 10)  # meets both
    engine.until(lambda: engine.scheduler.idle)
    engine.add(2000, 10)  # misses the first token's
    engine.until(lambda: engine.scheduler.idle)
    for _ in range(8):
        engine.add(10, 40)  # so many together miss those after it
    cancelled = engine.add(10, 40)
    engine.step()
    engine.scheduler.finish(cancelled, FinishReason.CANCELLED)
    engine.until(lambda: engine.scheduler.idle)
    found = engine.scheduler.goodput.by_class[STANDARD]
    assert (found.finished, found.ttft_met, found.tpot_met, found.met, found.share) == (10, 9, 2, 1, 0.1)


def test_samples_are_queued_together_or_not_at_all() -> None:
    engine = served(options=SchedulingOptions(max_queued=4), max_batch=2)
    for _ in range(4):
        engine.add(10, 3)
    three = [request(100 + i, 10) for i in range(3)]
    with pytest.raises(QueueFull):
        engine.scheduler.add(*three)
    assert len(engine.scheduler.waiting) == 4
    engine.scheduler.add(*three[:2])
    engine.outputs |= dict.fromkeys(three, 1)
    engine.until(lambda: engine.scheduler.idle)


def test_techniques_left_out() -> None:
    """Static batches, whole prompts, and room for the longest sequence: each is what it says."""
    static = served(max_batch=2, options=SchedulingOptions(continuous=False))
    lives = [static.add(20, outputs) for outputs in (2, 9, 1)]
    static.until(finished(lives[1]))
    assert lives[0].state is RequestState.FINISHED and lives[2].first_token is None

    whole = served(max_tokens=64, options=SchedulingOptions(chunked=False))
    answering = whole.add(20, 9)
    whole.step()
    prompts = [whole.add(40, 1), whole.add(40, 1), whole.add(100, 1)]
    batches = [[(c.request, c.count) for c in whole.step()[0].chunks] for _ in range(5)]
    first, second, third = prompts
    assert batches == [[(first, 40)], [(second, 40)], [(third, 64)], [(third, 36)], [(answering, 1)]]

    reserved = served(num_blocks=2 * 8192 // 16, options=SchedulingOptions(paged=False))
    some = [reserved.add(20, 2) for _ in range(3)]
    reserved.step()
    assert [one.state for one in some] == [RequestState.RUNNING, RequestState.RUNNING, RequestState.WAITING]
