"""What a kernel's result is held against: float64 values, and how far from each the number format lets it lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

F32_SUM = 2.0**-18  # of the magnitudes that were added: what the order of a float32 sum may change


@dataclass(frozen=True)
class Expected:
    value: np.ndarray  # float64
    tolerance: np.ndarray  # absolute, same shape


class Wrong(AssertionError):
    """A kernel's result lies outside the format's tolerance."""


def compare(what: str, got: np.ndarray, want: Expected) -> None:
    error = np.abs(got.astype(np.float64) - want.value)
    bad = ~(error <= want.tolerance)  # NaN is bad
    if bad.any():
        i = tuple(int(x) for x in np.argwhere(bad)[0])
        raise Wrong(
            f"{what}: {bad.sum()} of {bad.size} values wrong, first at {i}: got {float(got[i])}, "
            f"expected {want.value[i]:.6g} +- {want.tolerance[i]:.2g}"
        )


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)
