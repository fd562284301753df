"""How long a step will take, learned from the steps that were measured. Pure Python, saved nowhere.

Seconds are a sum of positive costs: of a step, of one with prompts in it, of a decoding row, of a position that
such a row reads, of a prompt's token, and of each position that one reads. They are fitted by least squares of the
*relative* error, so that short and long steps count alike, and a step during which the machine stood still, however
long, counts less the longer it was. Old steps are forgotten. What changes at once for all steps (a slower clock, a busy
neighbour) is a factor beside it: the median of the latest ratios, which a few stalls do not move.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from statistics import median

Features = tuple[float, float, float, float, float, float]

# Seconds, until a step is measured: a small model on a few cores. The first measurement scales all of them together.
_PRIOR: Features = (1e-3, 1e-3, 1e-3, 1e-7, 2e-4, 5e-8)
_PRIOR_WEIGHT = 1e-4  # of one measured step
_LEAST_OF_PRIOR = 1e-3  # nothing is for free
_KEPT = 0.98  # of a step's weight at the next
_LEAST_RATIO = 0.1  # of measured to predicted seconds that is taken at its word
_SWEEPS = 4  # of coordinate descent, from the last solution
_LATEST = 9  # ratios
_SIZE = len(_PRIOR)


@dataclass(frozen=True)
class Work:
    """What a step does: `rows` that decode and read `positions`; `tokens` of prompts that read `attended`."""

    rows: int = 0
    positions: int = 0
    tokens: int = 0
    attended: int = 0

    @property
    def features(self) -> Features:
        return 1.0, float(self.tokens > 0), self.rows, self.positions, self.tokens, self.attended

    def and_prompt(self, start: int, count: int) -> "Work":
        """With tokens `start`..`start + count - 1` of a prompt as well."""
        attended = self.attended + count * start + count * (count + 1) // 2
        return Work(self.rows, self.positions, self.tokens + count, attended)


class StepTimes:
    """Predicts a step's seconds. `learn` from each one that was measured."""

    def __init__(self) -> None:
        self._prior: Sequence[float] = _PRIOR
        self._costs = list(_PRIOR)
        self._factor = 1.0
        self._latest: deque[tuple[Features, float]] = deque(maxlen=_LATEST)
        # Normal equations. The prior is as uncertain in each cost as that cost is large: what the first steps add to
        # the prediction is shared out in proportion.
        self._squares = [[0.0] * _SIZE for _ in range(_SIZE)]
        self._products = [0.0] * _SIZE

    def seconds(self, work: Work) -> float:
        return self._factor * _sum(self._costs, work.features)

    def learn(self, work: Work, seconds: float) -> None:
        if not seconds > 0:
            return  # a clock that stands still tells nothing
        features = work.features
        if not self._latest:
            unit = seconds / self.seconds(work)
            self._costs = [unit * cost for cost in _PRIOR]
            self._prior = tuple(self._costs)
        self._latest.append((features, seconds))
        self._observe(features, seconds)
        self._solve()
        self._factor = median(one / _sum(self._costs, seen) for seen, one in self._latest)

    def largest_chunk(self, work: Work, start: int, most: int, limit: float) -> int:
        """The most tokens, up to `most`, of a prompt from `start` on that a step of `work` can take within `limit`
        seconds; 0 if none."""
        low, high = 0, most
        while low < high:
            count = (low + high + 1) // 2
            if self.seconds(work.and_prompt(start, count)) <= limit:
                low = count
            else:
                high = count - 1
        return low

    def _observe(self, features: Features, seconds: float) -> None:
        # What is relative to almost nothing would outweigh all else.
        scale = max(seconds, _LEAST_RATIO * _sum(self._costs, features))
        relative, ratio = [value / scale for value in features], seconds / scale
        for i, (value, row) in enumerate(zip(relative, self._squares, strict=True)):
            self._squares[i] = [_KEPT * old + value * other for old, other in zip(row, relative, strict=True)]
            self._products[i] = _KEPT * self._products[i] + value * ratio

    def _solve(self) -> None:
        """Coordinate descent: each cost in turn is the best beside the others, and above zero."""
        costs = self._costs
        for _ in range(_SWEEPS):
            for i, prior in enumerate(self._prior):
                row, weight = self._squares[i], _PRIOR_WEIGHT / (prior * prior)
                others = _sum(row, costs) - row[i] * costs[i]
                best = (self._products[i] - others + weight * prior) / (row[i] + weight)
                costs[i] = max(_LEAST_OF_PRIOR * prior, best)


def _sum(costs: Sequence[float], features: Sequence[float]) -> float:
    return float(sum(map(mul, costs, features)))
