"""A workload drawn: which requests, how long, when, over which shared prefix. The same seed draws the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from llmc.serve.load.lengths import Lengths
from llmc.serve.load.refusal import BenchRefused


@dataclass(frozen=True)
class Planned:
    """One request of a plan.

    `arrival`: seconds after the run begins, where the plan says when; None in a closed loop, which sends it when
    another has ended. `prompt_len` counts the tokens of its own, which follow `prefix_len` tokens of the shared prefix
    number `prefix`. `given`: the prompt itself, where a trace has it.
    """

    index: int
    prompt_len: int
    output_len: int
    arrival: float | None = None
    latency: str | None = None
    prefix: int = 0
    prefix_len: int = 0
    given: str | tuple[int, ...] | None = None

    @property
    def input_len(self) -> int:
        return self.prefix_len + self.prompt_len


@dataclass(frozen=True)
class SharedPrefixes:
    """`share` of all requests begin with one of `count` prefixes of `tokens` tokens."""

    share: float
    tokens: int
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.tokens >= 0 and self.count >= 1):
            raise BenchRefused(
                f"shared prefixes: share {self.share} must be in 0..1, length {self.tokens} at least 0, "
                f"count {self.count} at least 1"
            )


@dataclass(frozen=True)
class Mix:
    """What requests are drawn from. `classes`: latency classes by weight; none: the server's own default."""

    num_requests: int
    prompts: Lengths
    outputs: Lengths
    prefixes: SharedPrefixes = SharedPrefixes(0.0, 0)
    classes: Mapping[str, float] | None = None

    def draw(self, seed: int) -> list[Planned]:
        """Without arrivals. Lengths come from a generator of their own, so that they stay when prefixes change."""
        lengths, others = Random(seed), Random(f"{seed} prefixes and classes")
        return [self._one(index, lengths, others) for index in range(self.num_requests)]

    def _one(self, index: int, lengths: Random, others: Random) -> Planned:
        shared = others.random() < self.prefixes.share
        prefix = others.randrange(self.prefixes.count)
        latency = None
        if self.classes:
            (latency,) = others.choices(list(self.classes), list(self.classes.values()))
        return Planned(
            index,
            self.prompts.draw(lengths),
            self.outputs.draw(lengths),
            latency=latency,
            prefix=prefix,
            prefix_len=self.prefixes.tokens if shared else 0,
        )


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds of `count` arrivals of a Poisson process of `rate` a second; the first comes at 0."""
    random = Random(f"{seed} arrivals")
    now, found = 0.0, []
    for _ in range(count):
        found.append(now)
        now += random.expovariate(rate)
    return found


def parse_classes(text: str) -> dict[str, float]:
    """`interactive=3,batch=1`: names with their weights. BenchRefused for anything else."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            found[name] = float(weight or 1)
        except ValueError as error:
            raise BenchRefused(f"classes {text!r}: {weight!r} is no weight; write interactive=3,batch=1") from error
        if not (name and 0 < found[name] < float("inf")):
            raise BenchRefused(f"classes {text!r}: {part!r} has no name or no positive weight")
    return found
