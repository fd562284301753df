"""Which launches touch the same memory, and so must not run side by side.

A CUDA graph is told the edges; workers that walk the launches together meet where they must.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Memory that a launch touches: [start, stop) of a space. Spans of one space in the same unit (bytes per row, as
    all rows of a region scale together; or 0 to 1 for what is touched as a whole). `part`: which of the rows, where
    several launches share them out; "": all."""

    space: str
    start: int = 0
    stop: int = 1
    part: str = ""

    def overlaps(self, other: Span) -> bool:
        apart = bool(self.part and other.part) and self.part != other.part
        return self.space == other.space and self.start < other.stop and other.start < self.stop and not apart


def scratch_span(name: str) -> Span:
    """Memory beside the arena that launches share."""
    return Span(f"scratch {name}")


def slot_span(slot: int) -> Span:
    """Keys and values of one attention layer, in all blocks."""
    return Span("kv", slot, slot + 1)


@dataclass(frozen=True)
class Access:
    """What one launch reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    def conflicts(self, other: Access) -> bool:
        """Does one write what the other touches?"""
        return _meet(self.writes, (*other.reads, *other.writes)) or _meet(self.reads, other.writes)


def _meet(first: Sequence[Span], second: Sequence[Span]) -> bool:
    return any(a.overlaps(b) for a in first for b in second)


def edges(accesses: Sequence[Access]) -> list[tuple[int, ...]]:
    """For each launch of a sequence, those it must come after: every conflict is ordered, and no edge is implied by
    others."""
    found: list[tuple[int, ...]] = []
    before: list[int] = []  # of each launch: a bit for every launch that its edges reach
    for i, access in enumerate(accesses):
        chosen: list[int] = []
        reached = 0
        for j in range(i - 1, -1, -1):
            if not reached >> j & 1 and access.conflicts(accesses[j]):
                chosen.append(j)
                reached |= before[j] | 1 << j
        found.append(tuple(reversed(chosen)))
        before.append(reached)
    return found


def meetings(accesses: Iterable[Access]) -> list[bool]:
    """For each launch of a sequence that workers walk together: do they meet before it, as it conflicts with one since
    the last meeting?"""
    found: list[bool] = []
    since: list[Access] = []
    for access in accesses:
        found.append(any(access.conflicts(other) for other in since))
        since = [access] if found[-1] else [*since, access]
    return found
