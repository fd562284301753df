"""Formats under a budget: every linear begins in the one asked for, and what gains most for its bits gets more.

Measured KLs are compared in steps of an eighth of an octave, and equal ones in the order of the model, so that the last
digits of torch's sums, which differ by machine, decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp2, isinf, log2

from llmc.compiler.quality.budget import Budget
from llmc.compiler.quality.units import Unit
from llmc.ir.formats import Scheme
from llmc.ir.types import DType

_STEPS = 8  # of an octave


class OverBudget(Exception):
    """No choice keeps to the budget; the message is one line for people."""


@dataclass(frozen=True)
class Measured:
    """A unit, and the KL that each format costs where all else is the source's."""

    unit: Unit
    kl: Mapping[Scheme, float]


@dataclass(frozen=True)
class Chosen:
    """A unit's format, and what it costs by itself."""

    unit: Unit
    scheme: Scheme
    kl: float

    @property
    def num_bits(self) -> float:
        return bits(self.unit, self.scheme)


def bits(unit: Unit, scheme: Scheme) -> float:
    """Of all its weights."""
    return sum(rows * columns * scheme.weight.bits(columns) for rows, columns in (p.shape for p in unit.parts))


def mean_bits(chosen: Sequence[Chosen]) -> float:
    return sum(c.num_bits for c in chosen) / sum(c.unit.num_weights for c in chosen)


def finer(base: Scheme) -> tuple[Scheme, ...]:
    """The formats that a linear may have instead of the one asked for, by their bits."""
    shorter = (Scheme.named("int4g32"),) if base.weight.element in (DType.I4, DType.U4) else ()
    return tuple(s for s in (*shorter, Scheme.INT8, Scheme.BF16) if s.weight.bits(4096) > base.weight.bits(4096))


def choose(measured: Sequence[Measured], base: Scheme, budget: Budget) -> list[Chosen]:
    """Upgrades by KL that they save for each bit, until bits are used up or the sum of KLs keeps to the budget. Raises
    OverBudget."""
    chosen = [Chosen(m.unit, base, m.kl[base]) for m in measured]
    if budget.bits is not None and mean_bits(chosen) > budget.bits:
        raise OverBudget(f"bits={budget.bits:g}: {base} takes {mean_bits(chosen):.2f} for each weight already")
    while budget.kl is None or sum(c.kl for c in chosen) > budget.kl:
        at, best = _best(measured, chosen, budget)
        if best is None:
            if budget.kl is not None:
                least = sum(c.kl for c in chosen)
                raise OverBudget(f"kl={budget.kl:g}: the finest formats come to {least:.2g}: allow more")
            break
        chosen[at] = best
    for c in chosen:
        if isinf(c.kl):
            raise OverBudget(
                f"{budget}: {', '.join(c.unit.modules)} in {c.scheme} has values beyond its scales: allow more"
            )
    return chosen


def _best(measured: Sequence[Measured], chosen: Sequence[Chosen], budget: Budget) -> tuple[int, Chosen | None]:
    """The upgrade to make next, and whose."""
    weights = sum(c.unit.num_weights for c in chosen)
    left = float("inf") if budget.bits is None else budget.bits * weights - sum(c.num_bits for c in chosen)
    found: tuple[int, Chosen | None] = (0, None)
    most: float | None = None
    for at, (m, now) in enumerate(zip(measured, chosen, strict=True)):
        for scheme, kl in m.kl.items():
            better = Chosen(m.unit, scheme, kl)
            more = better.num_bits - now.num_bits
            if not 0 < more <= left or kl >= now.kl:
                continue
            gain = _in_steps((now.kl - kl) / more)
            if most is None or gain > most:
                found, most = (at, better), gain
    return found


def in_steps(kl: float) -> float:
    """The nearest that is compared: 0 stays 0, and less than nothing is torch's rounding."""
    return exp2(_in_steps(kl) / _STEPS) if kl > 0 else 0.0


def _in_steps(x: float) -> float:
    return x if isinf(x) else round(_STEPS * log2(x))
