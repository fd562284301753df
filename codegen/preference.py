"""Why one kernel and not another, for the build's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preference:
    """One choice between kernels.

    `op`: what they compute; `of`: for which of the model's ops and which steps; `chosen`: how the best one does it.
    `reason`, and why each of the others was `rejected`, best first: a few words, and after a colon the rest.
    `kernels`: the symbols of what was chosen, where it is a kernel of its own.
    """

    op: str
    of: str
    chosen: str
    reason: str
    rejected: Mapping[str, str]
    kernels: tuple[str, ...] = field(default=())
