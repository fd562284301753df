"""When requests are sent: as they arrive by the plan, or each when another has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from llmc.serve.load.connection import Exchange
from llmc.serve.load.plan import Planned

Send = Callable[[Planned], Awaitable[Exchange]]


async def drive(plan: Sequence[Planned], concurrency: int | None, send: Send) -> list[Exchange]:
    """All exchanges, in the order of the plan: a closed loop of `concurrency`, or else an open one.

    An open loop sends every request at its arrival, however many are under way.
    """
    if concurrency is None:
        return await _open_loop(plan, send)
    return await _closed_loop(plan, concurrency, send)


async def _open_loop(plan: Sequence[Planned], send: Send) -> list[Exchange]:
    begin = time.perf_counter()
    sent = []
    for planned in plan:
        assert planned.arrival is not None, "an open loop needs arrivals"
        while (wait := begin + planned.arrival - time.perf_counter()) > 0:  # timers may be a millisecond early
            await asyncio.sleep(wait)
        sent.append(asyncio.ensure_future(send(planned)))
    return list(await asyncio.gather(*sent))


async def _closed_loop(plan: Sequence[Planned], concurrency: int, send: Send) -> list[Exchange]:
    found: dict[int, Exchange] = {}
    queue = iter(enumerate(plan))

    async def worker() -> None:
        for place, planned in queue:
            found[place] = await send(planned)

    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(plan)))))
    return [found[place] for place in range(len(plan))]
