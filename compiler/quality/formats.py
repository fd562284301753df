"""The formats of a build's linears, chosen by what they cost over a calibration text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from llmc.compiler.quality.budget import Budget
from llmc.compiler.quality.choose import Chosen, Measured, bits, choose, in_steps, mean_bits
from llmc.compiler.quality.sensitivity import Calibration
from llmc.compiler.quality.units import Unit
from llmc.ir.formats import Scheme
from llmc.passes.choose_formats import At

TOKENS = 256  # of calibration text: a third of a second for each unit of SmolLM2-135M on two idle cores


@dataclass(frozen=True)
class Choice:
    """Formats of units, and why: `budget`, what each costs by itself, and what was tried."""

    budget: Budget
    text: str
    tokens: int
    tried: tuple[Scheme, ...]
    chosen: tuple[Chosen, ...]

    @property
    def others(self) -> tuple[At, ...]:
        """For passes/choose_formats.py."""
        return tuple(At(module, c.scheme) for c in self.chosen for module in c.unit.modules)

    def to_json(self) -> dict[str, Any]:
        return {
            "budget": str(self.budget),
            "text": self.text,
            "tokens": self.tokens,
            "tried": list(map(str, self.tried)),
            "bits": round(mean_bits(self.chosen), 3),
            "expected_kl": _rounded(sum(c.kl for c in self.chosen)),
            "units": [
                {
                    "modules": list(c.unit.modules),
                    "scheme": str(c.scheme),
                    "bits": round(bits(c.unit, c.scheme) / c.unit.num_weights, 3),
                    "kl": _rounded(c.kl),
                }
                for c in self.chosen
            ],
        }


def _rounded(kl: float) -> float:
    return float(f"{kl:.2e}")


def measure_units(
    units: Iterable[Unit],
    schemes: Sequence[Scheme],
    calibration: Calibration,
    progress: Callable[[int, int], None],
) -> list[Measured]:
    """The first scheme by rounding each unit alone; of the others KL goes as the square of the error of the weights,
    where that is known."""
    found = []
    known = [unit for unit in units if calibration.holds(unit)]
    for done, unit in enumerate(known, 1):
        base, *finer = schemes
        kl = calibration.kl(unit, base.weight)
        by_scheme = {base: in_steps(kl)}
        if isinf(kl):  # a weight beyond what scales hold
            by_scheme |= {scheme: in_steps(calibration.kl(unit, scheme.weight)) for scheme in finer}
        else:
            error = calibration.squared_error(unit, base.weight)
            for scheme in finer:
                ratio = calibration.squared_error(unit, scheme.weight) / error if error else 0.0
                by_scheme[scheme] = in_steps(kl * ratio)
        found.append(Measured(unit, by_scheme))
        progress(done, len(known))
    return found


def choose_formats(
    units: Iterable[Unit],
    schemes: Sequence[Scheme],
    calibration: Calibration,
    budget: Budget,
    text: str,
    progress: Callable[[int, int], None],
) -> Choice:
    """`schemes`: the one asked for, then finer ones. Raises OverBudget."""
    measured = measure_units(units, schemes, calibration, progress)
    return Choice(budget, text, calibration.num_tokens, tuple(schemes), tuple(choose(measured, schemes[0], budget)))
