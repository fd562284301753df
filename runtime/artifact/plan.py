"""What the launch plans of all targets have in common (docs/plan.md)."""

from dataclasses import dataclass

FORMAT = 1


@dataclass(frozen=True)
class Buffer:
    """Rows of a value: of the region that `rows` names (T or R), at region + max_rows * offset (bytes per row)."""

    name: str
    type: str
    rows: str
    row_bytes: int
    offset: int


@dataclass(frozen=True)
class PlannedLaunch:
    """What every target says of a launch. `after`: those that must have ended before it starts, none of them implied by
    others; all conflicts of memory are ordered. Names, of buffers, inputs and weights, are for people."""

    op: str
    loc: str
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    writes: tuple[str, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Arena:
    """Bytes of the two regions of buffers, per row of a full step."""

    bytes_per_token: int
    bytes_per_row: int
