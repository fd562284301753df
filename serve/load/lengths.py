"""How long prompts and answers are: distributions that a word describes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from llmc.serve.load.refusal import BenchRefused


@dataclass(frozen=True)
class Fixed:
    """Draws token counts, as the others do: each at least 1."""

    tokens: int

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """Both ends included."""

    low: int
    high: int

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True)
class LogNormal:
    """exp(N(log median, sigma)), cut at `high`: most are short, a few are long, as in recorded traffic."""

    median: int
    sigma: float
    high: int

    def draw(self, random: Random) -> int:
        return max(1, min(self.high, round(random.lognormvariate(math.log(self.median), self.sigma))))


Lengths = Fixed | Uniform | LogNormal


def parse_lengths(text: str) -> Lengths:
    """`128`, `fixed:128`, `uniform:32-512`, or `lognormal:MEDIAN,SIGMA,MOST`. BenchRefused for anything else."""
    kind, _, rest = text.partition(":") if ":" in text else ("fixed", ":", text)
    try:
        match kind:
            case "fixed":
                found: Lengths = Fixed(_count(rest))
            case "uniform":
                low, high = (_count(end) for end in rest.split("-"))
                if low > high:
                    raise ValueError(f"{low} is more than {high}")
                found = Uniform(low, high)
            case "lognormal":
                median, sigma, most = rest.split(",")
                found = LogNormal(_count(median), float(sigma), _count(most))
                if not 0 <= found.sigma < 100:
                    raise ValueError(f"sigma is {sigma}")
            case _:
                raise ValueError(f"no distribution {kind!r}")
    except ValueError as error:
        raise BenchRefused(
            f"lengths {text!r}: {error}; write 128, uniform:32-512 or lognormal:MEDIAN,SIGMA,MOST"
        ) from error
    return found


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count < 1 << 31:
        raise ValueError(f"{count} is no number of tokens")
    return count
