"""Arena offsets for every intermediate value, known at build.

A value of T rows takes `row_bytes * max_tokens` bytes, whatever the run-time envelope is, so an offset is a number of
bytes per token (or per sampled row): address = base + max_tokens * offset. Values whose lives do not overlap share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

LINE = 64


class RowKind(Enum):
    TOKEN = "T"
    SAMPLED = "R"


@dataclass(frozen=True)
class Life:
    """A buffer and the launches between which it must keep its bytes (first writes it, last reads it)."""

    name: str
    rows: RowKind
    row_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """`offset` bytes per row of its kind from the start of that kind's region."""

    life: Life
    offset: int

    @property
    def end(self) -> int:
        return self.offset + round_line(self.life.row_bytes)


@dataclass(frozen=True)
class PlacedBuffers:
    """Where every buffer is, and the bytes of each region per row."""

    placements: dict[str, Placement]
    per_token: int
    per_row: int


def place_buffers(lives: Iterable[Life]) -> PlacedBuffers:
    """Largest first, each at the lowest offset where it meets no living neighbour."""
    placed: list[Placement] = []
    for life in sorted(lives, key=lambda b: (-b.row_bytes, b.first, b.name)):
        neighbours = sorted(
            (p for p in placed if p.life.rows is life.rows and p.life.first <= life.last and life.first <= p.life.last),
            key=lambda p: p.offset,
        )
        offset = 0
        for other in neighbours:
            if offset + round_line(life.row_bytes) <= other.offset:
                break
            offset = max(offset, other.end)
        placed.append(Placement(life, offset))

    def total(kind: RowKind) -> int:
        return max((p.end for p in placed if p.life.rows is kind), default=0)

    placements = {p.life.name: p for p in sorted(placed, key=lambda p: (p.life.first, p.life.name))}
    return PlacedBuffers(placements, total(RowKind.TOKEN), total(RowKind.SAMPLED))


def round_line(num_bytes: int) -> int:
    return -(-num_bytes // LINE) * LINE
