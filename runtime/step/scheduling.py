"""What a caller asks of the scheduler at load: targets of latency, bounds of the queue, and techniques left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from llmc.runtime.artifact.bounds import plain
from llmc.runtime.errors import InvalidParameter

ENDLESS = 2**31 - 1
_LONGEST = 1e6  # seconds


class LatencyClass(Enum):
    """What a request's user waits for: each token (a voice, a chat), the answer, or nothing (a file of them)."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @classmethod
    def named(cls, name: str) -> "LatencyClass":
        """Raises InvalidParameter."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(one.value for one in cls)
            raise InvalidParameter(f"latency must be one of {known}, got {name!r}") from None


# Smaller is more urgent.
RANK = {one: rank for rank, one in enumerate(LatencyClass)}


@dataclass(frozen=True)
class LatencyTarget:
    """Seconds to the first token and for each one after it, in the mean; both met is what goodput counts.

    `slowdown`: while such a request decodes, others' prompts may make a step so many times as long as it is without
    them. Raises InvalidParameter.
    """

    ttft: float
    tpot: float
    slowdown: float

    def __post_init__(self) -> None:
        for name, least in (("ttft", 0.0), ("tpot", 0.0), ("slowdown", 1.0)):
            value = plain(getattr(self, name))
            if isinstance(value, bool) or not isinstance(value, int | float) or not least < value <= _LONGEST:
                raise InvalidParameter(f"{name} of a latency class must be above {least:g}, got {value!r}")
            assert math.isfinite(value)
            object.__setattr__(self, name, float(value))


DEFAULT_TARGETS: Mapping[LatencyClass, LatencyTarget] = {
    LatencyClass.INTERACTIVE: LatencyTarget(ttft=1.0, tpot=0.05, slowdown=1.5),
    LatencyClass.STANDARD: LatencyTarget(ttft=5.0, tpot=0.1, slowdown=2.0),
    LatencyClass.BATCH: LatencyTarget(ttft=120.0, tpot=2.0, slowdown=1000.0),
}


@dataclass(frozen=True)
class SchedulingOptions:
    """Raises InvalidParameter. The last three leave a technique out, so that a bench can show what it brings."""

    targets: Mapping[str, LatencyTarget] = field(default_factory=dict)  # by a class's name, over DEFAULT_TARGETS
    max_queued: int = 2048  # requests that wait; one more is QueueFull
    max_queued_tokens: int = 1 << 24  # of prompts that wait
    continuous: bool = True  # False: no request is admitted until all that run have ended
    chunked: bool = True  # False: prompts are computed whole, and nobody decodes meanwhile
    paged: bool = True  # False: a request reserves room for the longest sequence when it is admitted

    def __post_init__(self) -> None:
        for name in ("max_queued", "max_queued_tokens"):
            value = plain(getattr(self, name))
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= ENDLESS:
                raise InvalidParameter(f"{name} must be in 1..{ENDLESS}, got {value!r}")
            object.__setattr__(self, name, value)
        targets = {one.value: target for one, target in DEFAULT_TARGETS.items()}
        targets |= {LatencyClass.named(name).value: target for name, target in self.targets.items()}
        object.__setattr__(self, "targets", targets)

    @property
    def by_class(self) -> Mapping[LatencyClass, LatencyTarget]:
        return {one: self.targets[one.value] for one in LatencyClass}
