"""A workload at one load or at several, again and again, in turns: so that what disturbs one disturbs all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from llmc.serve.load.metrics import Summary, Terms, errors, medians, summarise
from llmc.serve.load.plan import Mix, Planned, poisson_arrivals
from llmc.serve.load.progress import Progress
from llmc.serve.load.records import Run

OnEnd = Callable[[], None]


class Target(Protocol):
    """What answers requests: a server, or an engine in this process."""

    def run(self, plan: Sequence[Planned], concurrency: int | None, seed: str, on_end: OnEnd) -> Run:
        """Send a plan in a closed loop of `concurrency`, or by its arrivals; `on_end` after each request.

        `seed` makes the prompts.
        """


@dataclass(frozen=True)
class Load:
    """A closed loop of `concurrency` requests under way; else Poisson arrivals of `rate` a second; else those of a
    trace."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        return "as in the trace" if self.rate is None else f"{self.rate:g} requests/s"


@dataclass(frozen=True)
class Workload:
    """Requests drawn from a mix, or those of a trace."""

    requests: Mix | tuple[Planned, ...]
    seed: int = 0

    def plan(self, load: Load) -> list[Planned]:
        drawn = self.requests.draw(self.seed) if isinstance(self.requests, Mix) else list(self.requests)
        if load.rate is None:
            return drawn
        arrivals = poisson_arrivals(len(drawn), load.rate, self.seed)
        return [replace(planned, arrival=when) for planned, when in zip(drawn, arrivals, strict=True)]


@dataclass(frozen=True)
class Contender:
    """A target under a load, with the name that it has in tables."""

    name: str
    target: Target
    load: Load
    terms: Terms


@dataclass(frozen=True)
class Result:
    """What one contender showed: every repetition, and the medians of them. `errors`: of all repetitions together."""

    name: str
    load: Load
    median: Summary
    repetitions: tuple[Summary, ...]
    errors: Counter[str]


def compare(
    contenders: Sequence[Contender], workload: Workload, repetitions: int, warmup: int, progress: Progress
) -> list[Result]:
    """Each contender runs the same requests once in every round, in an order that turns round by round.

    Lengths and arrivals are alike in all runs. The ids of prompts are new in each, so that no prefix cache knows them
    from the one before.
    """
    warmed: set[int] = set()
    runs: list[list[Run]] = [[] for _ in contenders]
    for number in range(repetitions):
        order = list(range(len(contenders)))
        for place in order if number % 2 == 0 else reversed(order):
            contender = contenders[place]
            if warmup and id(contender.target) not in warmed:
                warmed.add(id(contender.target))
                _warm_up(contender, workload, warmup, progress)
            plan = workload.plan(contender.load)
            progress.begin(f"{contender.name}, round {number + 1} of {repetitions}", len(plan))
            seed = f"{workload.seed}/{number}/{place}"
            runs[place].append(contender.target.run(plan, contender.load.concurrency, seed, progress.advance))
    return [_result(contender, each) for contender, each in zip(contenders, runs, strict=True)]


def _warm_up(contender: Contender, workload: Workload, count: int, progress: Progress) -> None:
    """A few of the requests, all at once, with other prompts; nothing is counted."""
    plan = workload.plan(Load(concurrency=count))[:count]
    progress.begin(f"{contender.name}, warm-up", len(plan))
    contender.target.run(plan, count, f"{workload.seed}/warm-up", progress.advance)


def _result(contender: Contender, runs: Sequence[Run]) -> Result:
    each = tuple(summarise(run, contender.terms) for run in runs)
    return Result(contender.name, contender.load, medians(each), each, errors(runs))
