"""The report of a card as a document: parts and their items, written as they come."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from parts import Outcome
from records import Item

from llmc.codegen.cuda.target.assumptions import ASSUMED

FORMAT = 2


@dataclass
class Report:
    """The document, as it is so far, and where it lies. Parts by name."""

    out: Path
    seed: int
    tiny: bool
    start: float
    parts: dict[str, Outcome] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # what never became a part, and why
    expected: tuple[str, ...] = ()  # parts that a complete report has

    @property
    def limits(self) -> dict[str, Item]:
        return self.parts["limits"].items if "limits" in self.parts else {}

    @property
    def path(self) -> Path:
        name = re.sub(r"\W+", "-", str(self.limits.get("card", {}).get("name", "no-card"))).strip("-").lower()
        return self.out / f"{name}{'-emulated' if self.tiny else ''}.json"

    @property
    def wrong(self) -> int:
        """Items with a wrong result, and those that ended their process."""
        outcomes = self.parts.values()
        return sum(len(o.errors) + sum(bool(i.get("error")) for i in o.items.values()) for o in outcomes)

    @property
    def complete(self) -> bool:
        checked = all(not i.get("not_checked") for o in self.parts.values() for i in o.items.values())
        return checked and not self.notes and all(n in self.parts and self.parts[n].complete for n in self.expected)

    @property
    def verdict(self) -> str:
        missing = [f"{name} ({why})" for name, why in self.notes.items()]
        missing += [name for name in self.expected if name not in self.parts and name not in self.notes]
        missing += [name for name, o in self.parts.items() if not o.complete]
        wrong = f"{self.wrong} WRONG" if self.wrong else "nothing wrong"
        return f"{wrong}; " + (f"INCOMPLETE: {', '.join(missing)}" if missing else "complete")

    def write(self) -> None:
        """All of it, or what was there before."""
        content = {
            "format": FORMAT,
            "tiny": self.tiny,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.start, 1),
            "complete": self.complete,
            "wrong": self.wrong,
            "notes": self.notes,
            "assumptions_of_predictions": asdict(ASSUMED),
            "parts": {name: outcome.plain() for name, outcome in self.parts.items()},
        }
        self.out.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path)


def bandwidth(limits: Mapping[str, Item]) -> float:
    """The larger of reading and copying: no kernel was seen to move more."""
    return max((limits[key]["bytes_per_second"] for key in ("copy", "read") if key in limits), default=0.0)


def rate(limits: Mapping[str, Item]) -> float:
    return float(limits["matrix"]["operations_per_second"]) if "matrix" in limits else 0.0
