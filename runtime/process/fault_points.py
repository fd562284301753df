"""Named places where a test makes something go wrong in a running server. All are off, unless LLMC_FAULT_POINTS says
otherwise: `submit=40,text=200` raises at every 40th request that is queued, and at every 200th token that becomes text;
`stream` at pieces of answers that are sent. `integrity=1` has queues and blocks checked after every step.
"""

import os

NAMES = ("submit", "text", "stream", "integrity")
_VARIABLE = "LLMC_FAULT_POINTS"


class InjectedFault(Exception):
    """Of a test."""


class FaultPoints:
    """How often each point is passed until it strikes, and how often it was passed."""

    def __init__(self, described: str) -> None:
        """Raises ValueError for what names no point."""
        self._every = {
            name: int(count) for name, _, count in (one.partition("=") for one in described.split(",") if one)
        }
        for name in self._every:
            if name not in NAMES:
                raise ValueError(f"{_VARIABLE}: there is no point {name!r}; there are {', '.join(NAMES)}")
        self._passed = dict.fromkeys(self._every, 0)

    def strikes(self, name: str) -> bool:
        """Whether it is this point's turn now."""
        every = self._every.get(name)
        if every is None:
            return False
        self._passed[name] += 1
        return self._passed[name] % every == 0

    def reach(self, name: str) -> None:
        """Raises InjectedFault when it is this point's turn."""
        if self.strikes(name):
            raise InjectedFault(name)


FAULT_POINTS = FaultPoints(os.environ.get(_VARIABLE, ""))
