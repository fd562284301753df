"""Who runs when, with which requests."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from llmc.serve.load.campaign import Contender, Load, Workload, compare
from llmc.serve.load.lengths import Uniform
from llmc.serve.load.metrics import Terms
from llmc.serve.load.plan import Mix, Planned
from llmc.serve.load.progress import Progress
from llmc.serve.load.records import Run
from tests.serve.load.records import record


@dataclass
class Recorder:
    """A target that notes what it is asked. Its n-th run takes n seconds."""

    name: str
    log: list[tuple[str, str]]
    plans: list[list[Planned]] = field(default_factory=list)

    def run(self, plan: Sequence[Planned], concurrency: int | None, seed: str, on_end: Callable[[], None]) -> Run:
        self.log.append((self.name, seed))
        self.plans.append(list(plan))
        seconds = float(len(self.plans))
        return Run((record([seconds / 2, seconds]),), seconds)


def progress() -> Progress:
    return Progress(Console(file=io.StringIO()))


def test_contenders_take_turns_and_prompts_are_new_in_each_run() -> None:
    log: list[tuple[str, str]] = []
    one, two = Recorder("one", log), Recorder("two", log)
    contenders = [Contender(target.name, target, Load(concurrency=2), Terms(2)) for target in (one, two)]
    results = compare(contenders, Workload(Mix(5, Uniform(1, 99), Uniform(1, 9)), 3), 3, 2, progress())
    runs = [(name, seed) for name, seed in log if "warm-up" not in seed]
    assert [name for name, _ in runs] == ["one", "two", "two", "one", "one", "two"]
    assert len({seed for _, seed in runs}) == 6
    assert [name for name, seed in log if "warm-up" in seed] == ["one", "two"]
    assert [len(plan) for plan in one.plans] == [2, 5, 5, 5]
    assert one.plans[1] == one.plans[2] == two.plans[3]  # lengths are alike in all
    assert [summary.seconds for summary in results[0].repetitions] == [2, 3, 4]
    assert results[0].median.seconds == 3


def test_a_target_under_several_loads_is_warmed_up_once() -> None:
    target = Recorder("x", [])
    loads = [Load(rate=1.0), Load(rate=2.0)]
    contenders = [Contender(load.name, target, load, Terms(2)) for load in loads]
    compare(contenders, Workload(Mix(4, Uniform(1, 9), Uniform(1, 9)), 3), 1, 1, progress())
    assert [len(plan) for plan in target.plans] == [1, 4, 4]
    slow, fast = target.plans[1:]
    assert [2 * planned.arrival for planned in fast if planned.arrival is not None] == [p.arrival for p in slow]
    assert [load.name for load in loads] == ["1 requests/s", "2 requests/s"]
