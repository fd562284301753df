"""What a check of primitives is: kernels of its own, run on a card, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.gpu.card import CardLab

Array = np.ndarray
HEAD = '#include "device.cuh"\n'


@dataclass(frozen=True)
class Check:
    """`sources` hold the primitives that are shown; `run` raises AssertionError with what differs. needs: features."""

    name: str
    sources: tuple[str, ...]
    run: Callable[[CardLab], None]
    needs: tuple[str, ...] = ()


def kernel(threads: int, parameters: str, body: str) -> str:
    return f"{HEAD}LLMC_KERNEL({threads}, 1) kernel({parameters}) {{\n{body}\n}}\nLLMC_EXPORT(kernel)\n"


def equal(what: str, got: Array, want: Array) -> None:
    with np.errstate(invalid="ignore"):  # NaN
        got, want = (x.astype(np.float64) if x.dtype.kind not in "iu" else x for x in (got, want))
    wrong = ~((got == want) | ((got != got) & (want != want)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} differ, first at {at}: {got[at]} for {want[at]}")


def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)
