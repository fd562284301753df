"""The queue of requests that hold no blocks: bounded in requests and in tokens, quick to tell who is next.

Thousands may wait while places come free one by one, so the next one is found without looking at all of them: those
of one class and priority stand in line, and only the first of each line is compared.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from itertools import chain, islice

from llmc.runtime.errors import QueueFull
from llmc.runtime.loop.request import Request
from llmc.runtime.loop.urgency import Urgency

_MOST_LOOKED_AT = 64  # requests that are put off, before a step gives up looking for another
_PACE_KEPT = 0.9
_LEAST_WAIT = 1.0
_MOST_WAIT = 600.0


class _Line:
    """Requests of one class and priority, in the order of `Urgency.place`."""

    def __init__(self) -> None:
        self._resumed: list[int] = []  # arrivals of those that were preempted while they answered
        self._in_time: list[int] = []
        self._missed: list[int] = []  # too late for their targets
        self._dues: list[tuple[float, int]] = []  # of those in time

    def __len__(self) -> int:
        return len(self._resumed) + len(self._in_time) + len(self._missed)

    def add(self, request: Request) -> None:
        if request.first_token is not None:
            insort(self._resumed, request.arrival)
            return
        insort(self._in_time, request.arrival)
        insort(self._dues, (request.due, request.arrival))

    def remove(self, request: Request) -> None:
        if _drop(self._in_time, request.arrival):
            del self._dues[bisect_left(self._dues, (request.due, request.arrival))]
        elif not _drop(self._missed, request.arrival):
            assert _drop(self._resumed, request.arrival), "a request left a line in which it did not stand"

    def first(self, now: float, put_off: Container[int]) -> int | None:
        """The arrival that is next."""
        late = bisect_left(self._dues, (now, -1))
        for _, arrival in self._dues[:late]:
            _drop(self._in_time, arrival)
            insort(self._missed, arrival)
        del self._dues[:late]
        in_order = chain(self._resumed, self._in_time, self._missed)
        return next((a for a in islice(in_order, _MOST_LOOKED_AT) if a not in put_off), None)


def _drop(arrivals: list[int], arrival: int) -> bool:
    at = bisect_left(arrivals, arrival)
    if at < len(arrivals) and arrivals[at] == arrival:
        del arrivals[at]
        return True
    return False


class WaitingQueue:
    """Requests by urgency. At most `max_requests` of at most `max_tokens` prompt tokens can be added."""

    def __init__(self, urgency: Urgency, max_requests: int, max_tokens: int) -> None:
        self._urgency = urgency
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.clear()

    def clear(self) -> None:
        self._requests: dict[int, Request] = {}  # by arrival
        self._lines: dict[tuple[int, int], _Line] = {}  # by rank of the class and, negative, priority
        self._arrivals: list[int] = []  # a heap, of which those that wait no more are dropped late
        self.num_tokens = 0
        self._pace: float | None = None  # seconds from one departure to the next
        self._departed: float | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    @property
    def oldest(self) -> Request | None:
        while self._arrivals and self._arrivals[0] not in self._requests:
            heapq.heappop(self._arrivals)
        return self._requests[self._arrivals[0]] if self._arrivals else None

    @property
    def rank(self) -> int:
        """Of the most urgent class of which one waits."""
        return min(self._lines)[0]

    def check_room(self, num_requests: int, num_tokens: int, free_places: int, now: float) -> None:
        """Raises QueueFull if so many more cannot wait, beside those for which there are places."""
        excess = len(self) + num_requests - self._max_requests - free_places
        too_many = self.num_tokens + num_tokens - self._max_tokens
        if not self._requests or (excess <= 0 and too_many <= 0):
            return  # alone in the queue a request need not wait for others
        mean = self.num_tokens / len(self)
        wait = self._retry_after(max(excess, too_many / max(1.0, mean)), now)
        raise QueueFull(
            f"{len(self)} requests of {self.num_tokens} prompt tokens wait; the queue holds {self._max_requests} "
            f"and {self._max_tokens}; try again in {wait:.0f} s",
            wait,
        )

    def add(self, request: Request) -> None:
        """Without regard to the bounds: those that were preempted come back."""
        self._requests[request.arrival] = request
        self._line(request).add(request)
        heapq.heappush(self._arrivals, request.arrival)
        self.num_tokens += request.prompt_len

    def remove(self, request: Request) -> None:
        del self._requests[request.arrival]
        line = self._line(request)
        line.remove(request)
        if not line:
            del self._lines[request.rank, -request.priority]
        self.num_tokens -= request.prompt_len

    def depart(self, request: Request, now: float) -> None:
        """Remove one that runs from now on."""
        self.remove(request)
        if self._departed is not None:
            passed = now - self._departed
            self._pace = passed if self._pace is None else _PACE_KEPT * self._pace + (1 - _PACE_KEPT) * passed
        self._departed = now if self._requests else None  # an empty queue has no pace

    def first(self, now: float, put_off: Container[int]) -> Request | None:
        """The most urgent but for the arrivals that are `put_off`."""
        best: dict[int, Request] = {}
        for rank, priority in sorted(self._lines):
            if rank not in best:
                arrival = self._lines[rank, priority].first(now, put_off)
                if arrival is not None:
                    best[rank] = self._requests[arrival]
        return self._urgency.first(best.values(), now)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every request stands in one line, and is counted."""
        assert sum(map(len, self._lines.values())) == len(self._requests), "a line has lost or doubled a request"
        assert all(self._lines.values()), "an empty line was kept"
        assert self.num_tokens == sum(request.prompt_len for request in self), "tokens that wait are miscounted"

    def _line(self, request: Request) -> _Line:
        return self._lines.setdefault((request.rank, -request.priority), _Line())

    def _retry_after(self, departures: float, now: float) -> float:
        pace = self._pace or 0.0
        if self._departed is not None:
            pace = max(pace, _PACE_KEPT * pace + (1 - _PACE_KEPT) * (now - self._departed))
        return min(_MOST_WAIT, max(_LEAST_WAIT, departures * pace))
