"""The queue of requests that wait: its order against a sorted list, its bounds, and when it says to come again."""

from __future__ import annotations

import random

import pytest

from llmc.runtime.errors import InvalidParameter, QueueFull
from llmc.runtime.loop.request import Request
from llmc.runtime.loop.urgency import Urgency
from llmc.runtime.loop.waiting import WaitingQueue
from llmc.runtime.step.scheduling import DEFAULT_TARGETS, LatencyClass, LatencyTarget, SchedulingOptions
from tests.runtime.scheduling import request

URGENCY = Urgency(DEFAULT_TARGETS)
CLASSES = list(LatencyClass)


def queue(max_requests: int = 100, max_tokens: int = 10_000) -> WaitingQueue:
    return WaitingQueue(URGENCY, max_requests, max_tokens)


def test_the_next_one_is_the_most_urgent_of_all() -> None:
    """Whatever came, left and became too late: as if all were compared each time."""
    rng, waiting, now = random.Random(5), queue(), 0.0
    inside: list[Request] = []
    for arrival in range(3000):
        now += rng.expovariate(2)
        if rng.random() < 0.6 or not inside:
            one = request(arrival, rng.randint(1, 9), rng.choice(CLASSES), rng.choice([0, 0, 2]))
            one.due = now + rng.uniform(-1, 10)
            one.first_token = now if rng.random() < 0.2 else None
            waiting.add(one)
            inside.append(one)
        put_off = {one.arrival for one in inside if rng.random() < 0.2}
        expected = URGENCY.first([one for one in inside if one.arrival not in put_off], now)
        assert waiting.first(now, put_off) is expected
        assert waiting.oldest is min(inside, key=lambda one: one.arrival, default=None)
        waiting.check_integrity()
        if rng.random() < 0.5 and expected is not None:
            waiting.depart(expected, now)
            inside.remove(expected)
        if inside and rng.random() < 0.2:
            waiting.remove(inside.pop(rng.randrange(len(inside))))
    assert len(waiting) == len(inside) > 0


def test_it_is_bounded_in_requests_and_tokens_beside_the_places_that_are_free() -> None:
    waiting = queue(max_requests=3, max_tokens=50)
    waiting.check_room(100, 10_000, 0, now=0)  # nobody waits: this one need not either
    for arrival in range(4):
        waiting.check_room(1, 10, free_places=1, now=0)
        waiting.add(request(arrival, 10))
    with pytest.raises(QueueFull, match=r"4 requests of 40 prompt tokens wait; the queue holds 3 and 50"):
        waiting.check_room(1, 1, free_places=1, now=0)
    waiting.check_room(1, 10, free_places=2, now=0)
    with pytest.raises(QueueFull):
        waiting.check_room(1, 11, free_places=2, now=0)


def test_it_says_to_come_again_by_the_pace_at_which_requests_leave() -> None:
    waiting = queue(max_requests=40)
    for arrival in range(60):
        waiting.add(request(arrival, 10))
    for step in range(10):
        first = waiting.first(2.0 * step, ())
        assert first is not None
        waiting.depart(first, now=2.0 * step)
    with pytest.raises(QueueFull) as refused:
        waiting.check_room(1, 10, 0, now=18.0)
    assert refused.value.retry_after == pytest.approx(22, rel=0.01)  # 11 have to leave, one in two seconds
    with pytest.raises(QueueFull) as refused:
        waiting.check_room(1, 10, 0, now=200.0)  # since when nobody left
    assert refused.value.retry_after > 60


@pytest.mark.parametrize(
    "refused",
    [
        lambda: LatencyTarget(0, 1, 2),
        lambda: LatencyTarget(1, float("nan"), 2),
        lambda: LatencyTarget(1, 1, 1),
        lambda: LatencyTarget(True, 1, 2),
        lambda: SchedulingOptions(max_queued=0),
        lambda: SchedulingOptions(max_queued_tokens=1.5),  # type: ignore[arg-type]
        lambda: SchedulingOptions({"urgent": LatencyTarget(1, 1, 2)}),
    ],
)
def test_options_out_of_their_ranges_are_refused(refused: object) -> None:
    assert callable(refused)
    with pytest.raises(InvalidParameter):
        refused()


def test_targets_are_set_over_the_defaults_by_name() -> None:
    fast = LatencyTarget(0.1, 0.01, 1.2)
    options = SchedulingOptions({"interactive": fast})
    assert options.by_class == {**DEFAULT_TARGETS, LatencyClass.INTERACTIVE: fast}
