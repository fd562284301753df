"""Numbers as C++ text."""

from __future__ import annotations

import numpy as np


def float32(value: float) -> np.float32:
    """The nearest float32, infinite where float32 ends."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def finite_literal(x: np.float32) -> str:
    """A finite float32 as a literal that C++ reads back to the same bits."""
    return f"{x!s}f" if any(c in str(x) for c in ".e") else f"{x!s}.0f"
