"""A service level objective: bounds of an answer's times."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmc.serve.load.records import Record
from llmc.serve.load.refusal import BenchRefused

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Slo:
    """Seconds that an answer may take; None: no bound."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def met(self, record: Record) -> bool:
        """Of an answered request, in every bound. One token has no TPOT, so none that is too long."""
        found = ((record.ttft, self.ttft), (record.tpot, self.tpot), (record.e2e, self.e2e))
        return all(value is None or bound is None or value <= bound for value, bound in found)


def parse_slo(text: str) -> Slo:
    """`ttft:500ms,tpot:50ms,e2e:10s`. BenchRefused for anything else."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        found = re.fullmatch(r"(ttft|tpot|e2e):([0-9.]+)(us|ms|s)", part.strip())
        try:
            if found is None or found[1] in bounds:
                raise ValueError(part)
            bounds[found[1]] = float(found[2]) * _UNITS[found[3]]
        except ValueError as error:
            raise BenchRefused(f"SLO {text!r}: {part!r} is no bound; write ttft:500ms,tpot:50ms,e2e:10s") from error
    return Slo(**bounds)
