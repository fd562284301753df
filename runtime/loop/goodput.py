"""How many of the requests that finished met their targets, by latency class."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmc.runtime.loop.request import Request
from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget


@dataclass(frozen=True)
class Goodput:
    """Requests that ended by themselves, and those of them that met the target of the first token, of those after it,
    and of both."""

    finished: int = 0
    ttft_met: int = 0
    tpot_met: int = 0
    met: int = 0

    @property
    def share(self) -> float:
        return self.met / self.finished if self.finished else 1.0


class GoodputCounters:
    """Since the engine was loaded."""

    def __init__(self, targets: Mapping[LatencyClass, LatencyTarget]) -> None:
        self._targets = targets
        self.by_class = {one: Goodput() for one in LatencyClass}

    def finished(self, request: Request, now: float) -> None:
        """`request` has its last token."""
        if request.first_token is None:
            return
        target, so_far = self._targets[request.latency], self.by_class[request.latency]
        ttft = request.first_token - request.submitted <= target.ttft
        tpot = now - request.first_token <= target.tpot * (request.num_output - 1) or request.num_output == 1
        self.by_class[request.latency] = Goodput(
            so_far.finished + 1, so_far.ttft_met + ttft, so_far.tpot_met + tpot, so_far.met + (ttft and tpot)
        )
