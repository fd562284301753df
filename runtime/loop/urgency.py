"""Who is served first, of those whose prompt is to be computed, and who gives way.

A request is *due* when its prompt must be under way to meet its target. Of the classes' first ones, that with the least
slack goes first. Within a class it is a higher priority, then who was preempted while it answered, then who can still
be in time, then who cannot, and of these the oldest. So a prompt that takes longer than its target allows does not make
the short ones behind it late; it is as urgent as one of its class that comes now.

That alone would starve some. So of every `TURN` choices one is the oldest's (`Patience`), and who was preempted
`SPARED` times gives way to nobody but its elders.
"""

from collections.abc import Iterable, Mapping, Sequence

from llmc.runtime.loop.request import Request
from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget

TURN = 8
SPARED = 3


class Patience:
    """How often the oldest was passed over in a row."""

    def __init__(self) -> None:
        self._passed_over = 0

    @property
    def at_its_end(self) -> bool:
        """Whether it is the oldest's turn."""
        return self._passed_over >= TURN - 1

    def chosen(self, oldest: bool) -> None:
        self._passed_over = 0 if oldest else self._passed_over + 1


class Urgency:
    """Of requests with these targets."""

    def __init__(self, targets: Mapping[LatencyClass, LatencyTarget]) -> None:
        self.targets = targets

    def due(self, request: Request, now: float) -> float:
        """When the request is due, or would be if it came now and has missed its target.

        One that was preempted while it answered is due when its next token is.
        """
        if request.due >= now or request.first_token is not None:
            return request.due
        return now + self.targets[request.latency].ttft

    def first(self, requests: Iterable[Request], now: float) -> Request | None:
        """The most urgent of them."""
        best: dict[int, tuple[tuple[int, int, int], Request]] = {}
        for request in requests:
            claim = (self.place(request, now), request)
            if request.rank not in best or claim < best[request.rank]:
                best[request.rank] = claim
        if not best:
            return None
        return min((self.due(request, now), rank, request) for rank, (_, request) in best.items())[2]

    def place(self, request: Request, now: float) -> tuple[int, int, int]:
        """In its class: the smallest goes first."""
        kind = 0 if request.first_token is not None else 1 if request.due >= now else 2
        return -request.priority, kind, request.arrival


def by_weakness(running: Sequence[Request]) -> list[tuple[int, Request]]:
    """Those whose preemption hurts least first, of the least urgent class the youngest, with the ranks they have.

    Who is spared has the rank of the most urgent class, and with it the elders of its own.
    """
    spared: dict[int, int] = {}  # the youngest by rank
    for request in running:
        if request.num_preemptions >= SPARED:
            spared[request.rank] = max(request.arrival, spared.get(request.rank, -1))
    ranked = ((0 if r.arrival <= spared.get(r.rank, -1) else r.rank, r.arrival, r) for r in running)
    return [(rank, request) for rank, _, request in sorted(ranked, reverse=True)]
