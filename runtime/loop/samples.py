"""Several answers to one prompt: how many are drawn, and which of them are given back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmc.runtime.artifact.bounds import plain
from llmc.runtime.errors import InvalidParameter, RequestError
from llmc.runtime.loop.results import Completion
from llmc.runtime.step.params import SamplingParams

MAX_SAMPLES = 64  # of one prompt, `best_of` included

Scorer = Callable[[Completion], float]  # of a finished sample; the best n of `best_of` are those it likes most


@dataclass(frozen=True)
class Choice:
    """Which of the samples are given back: the `count` best ones by `scorer`, or by log-probability."""

    count: int
    scorer: Scorer | None
    logprobs: bool  # whether the caller has asked for them

    @classmethod
    def of(cls, n: int, samples: int, scorer: Scorer | None, params: SamplingParams) -> "Choice | None":
        """None where all are given back as they are."""
        return cls(n, scorer, params.logprobs is not None) if samples > n or scorer is not None else None

    def asks(self, params: SamplingParams) -> SamplingParams:
        """What is asked of each sample, so that it can be chosen."""
        return params if params.logprobs is not None else replace(params, logprobs=0)

    def best(self, samples: Sequence[Completion]) -> list[Completion]:
        """Best first; those that failed come last. Raises RequestError if the scorer does not score."""
        values = [float("-inf") if one.error is not None else self._value(one) for one in samples]
        order = sorted(range(len(samples)), key=lambda index: -values[index])
        best = [samples[index] for index in order[: self.count]]
        return best if self.logprobs else [replace(one, logprobs=()) for one in best]

    def _value(self, sample: Completion) -> float:
        if self.scorer is None:
            return cumulative(sample)
        try:
            value = float(self.scorer(sample))
        except Exception as error:
            raise RequestError(f"the scorer raised {type(error).__name__}: {error}") from error
        if math.isnan(value):
            raise RequestError("the scorer's value of a sample is no number")
        return value


def cumulative(completion: Completion) -> float:
    """Log-probability of the whole answer."""
    return sum(entry.logprob for entry in completion.logprobs)


def checked_samples(n: int, best_of: int | None) -> int:
    """How many are drawn so that `n` can be given back. Raises InvalidParameter."""
    n, best_of = plain(n), plain(best_of)
    samples = n if best_of is None else best_of
    for name, value in (("n", n), ("best_of", samples)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SAMPLES:
            raise InvalidParameter(f"{name} must be in 1..{MAX_SAMPLES}, got {value!r:.40}")
    if samples < n:
        raise InvalidParameter(f"best_of is {samples}, fewer than n, which is {n}")
    return samples
