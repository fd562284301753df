"""Predictions of a step's time, against machines that cost what is made up here."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest

from llmc.runtime.loop.step_time import StepTimes, Work

# step, step with prompts, row, position of a row, token of a prompt, position of such a token
MACHINES = {
    "small model on a CPU": (2e-3, 1e-3, 1.2e-3, 4e-7, 9e-4, 2e-7),
    "8B on a CPU": (0.3, 0.1, 0.02, 3e-6, 0.05, 1e-6),
    "8B on a GPU": (6e-3, 2e-3, 5e-5, 2e-9, 2e-5, 1e-9),
}


def served(rng: random.Random, step: int) -> Work:
    rows = rng.randint(0, 8)
    work = Work(rows, rows * rng.randint(100, 2000))
    if step % 3 != 2 or rows == 0:
        return work.and_prompt(rng.randrange(6000), rng.randint(16, 512))
    return work


def errors(
    times: StepTimes, cost: Callable[[Work], float], rng: random.Random, steps: int, stalls: bool
) -> list[float]:
    """Of each step before it is learned: predicted over real."""
    found = []
    for step in range(steps):
        work = served(rng, step)
        seconds = cost(work) * rng.uniform(0.9, 1.1)
        found.append(times.seconds(work) / cost(work))
        times.learn(work, seconds * (rng.choice((10, 100)) if stalls and step % 17 == 5 else 1))
    return found


def cost_on(machine: str, factor: float = 1.0) -> Callable[[Work], float]:
    return lambda work: factor * sum(c * f for c, f in zip(MACHINES[machine], work.features, strict=True))


@pytest.mark.parametrize("machine", MACHINES)
def test_tens_of_steps_teach_any_machine_and_stalls_do_not_unteach(machine: str) -> None:
    times, rng = StepTimes(), random.Random(1)
    first = errors(times, cost_on(machine), rng, 40, stalls=True)
    assert 0.8 < median(first[5:20]) < 1.3
    later = errors(times, cost_on(machine), rng, 160, stalls=True)
    assert min(later) > 0.7 and max(later) < 1.4 and 0.9 < median(later) < 1.1


def test_a_machine_that_becomes_slower_is_known_after_a_few_steps() -> None:
    times, rng = StepTimes(), random.Random(2)
    errors(times, cost_on("8B on a GPU"), rng, 200, stalls=True)
    slower = errors(times, cost_on("8B on a GPU", factor=3), rng, 40, stalls=False)
    assert max(slower[:3]) < 0.5, "nothing has told it yet"
    assert all(0.7 < error < 1.4 for error in slower[10:])


def test_predictions_are_positive_from_the_start_and_grow_with_the_work() -> None:
    times = StepTimes()
    for step in range(30):
        works = [Work(), Work(1, 10), Work(1, 1000), Work(8, 8000), Work(8, 8000).and_prompt(0, 1)]
        works += [works[-1].and_prompt(start, 64) for start in (0, 1000)]
        seconds = [times.seconds(work) for work in works]
        assert seconds[0] > 0 and seconds == sorted(seconds) and len(set(seconds)) == len(seconds)
        times.learn(Work().and_prompt(0, 64), 1e-6 * (step % 3))  # a clock that is coarse, and at times stands still


def test_the_largest_chunk_is_the_largest_that_fits() -> None:
    times, rng = StepTimes(), random.Random(3)
    errors(times, cost_on("small model on a CPU"), rng, 60, stalls=False)
    for _ in range(200):
        work = Work(rng.randint(1, 8), rng.randint(1, 5000))
        start, most, limit = rng.randrange(8000), rng.randint(1, 512), rng.uniform(0, 0.5)
        count = times.largest_chunk(work, start, most, limit)
        assert 0 <= count <= most
        assert count == 0 or times.seconds(work.and_prompt(start, count)) <= limit
        assert count == most or times.seconds(work.and_prompt(start, count + 1)) > limit
