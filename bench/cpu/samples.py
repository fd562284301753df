"""Samples of a race and what they say: medians, ranges, and ratios of samples that were taken side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.cpu.load import Load


@dataclass(frozen=True)
class Sample:
    """One run. `limit`: what the machine could do then, bytes or operations per second."""

    round: int
    row: str  # the workload: "decode b1"
    contender: str
    rate: float  # tokens/s
    limit: float
    load: Load


@dataclass(frozen=True)
class Spread:
    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def show(self, scale: float = 1.0, digits: int = 0) -> str:
        low, high = f"{self.lowest * scale:.{digits}f}", f"{self.highest * scale:.{digits}f}"
        return f"{self.median * scale:.{digits}f} ({low}..{high})"


def rates(samples: Sequence[Sample], row: str, contender: str) -> dict[int, float]:
    """Rate by round."""
    return {s.round: s.rate for s in samples if s.row == row and s.contender == contender}


def ratios(numerators: dict[int, float], denominators: dict[int, float]) -> list[float]:
    """Of rounds that have both."""
    return [rate / denominators[number] for number, rate in numerators.items() if number in denominators]
