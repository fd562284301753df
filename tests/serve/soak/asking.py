"""Clients of every manner, many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.serve.soak.answers import Choice, read_stream, read_whole
from tests.serve.soak.questions import Manner, Visit
from tests.serve.wire import Wire, connected, post

PATIENCE = 120.0  # seconds, after which an answer counts as hung
_SLOW_BYTES, _SLOW_PAUSE, _MAX_PAUSES = 300, 0.02, 40


@dataclass
class Came:
    """What came of a visit: the choices of an answer that was read to its end, or why there is none."""

    visit: Visit
    status: int = 0
    choices: list[Choice] | None = None
    error: str = ""


@dataclass
class Crowd:
    """As many clients as are in flight; each asks, and comes again."""

    url: str
    in_flight: int
    came: list[Came] = field(default_factory=list)

    async def ask(self, visits: Sequence[Visit]) -> list[Came]:
        left = iter(visits)

        async def client() -> None:
            for visit in left:
                async with asyncio.timeout(PATIENCE):
                    self.came.append(await ask(self.url, visit))

        async with asyncio.TaskGroup() as clients:
            for _ in range(self.in_flight):
                clients.create_task(client())
        return self.came


async def ask(url: str, visit: Visit) -> Came:
    """One request on a connection of its own."""
    question, slow = visit.question, visit.manner is Manner.SLOW
    request = post(question.path, {**question.body, **({"stream": True} if visit.stream else {})})
    async with connected(url, receive_buffer=2048 if slow else None) as wire:
        if visit.manner is Manner.LEAVES:
            await _leave(wire, request, visit.moment)
            return Came(visit)
        wire.send(request)
        if slow:
            await _read_slowly(wire)
        await wire.response()
        assert wire.complete, f"a response of {len(wire.body)} bytes broke off after status {wire.status}"
    if error := _error(wire.body, visit.stream and wire.status == 200):
        return Came(visit, wire.status, error=error)
    choices = read_stream(wire.body, question.n) if visit.stream else read_whole(wire.body)
    return Came(visit, wire.status, choices)


def _error(body: bytes, stream: bool) -> str:
    """Of a refusal, or of the last event of a stream that failed."""
    if stream:
        body = body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
    found = {} if body == b"[DONE]" else json.loads(body)
    return str(found["error"]["message"]) if "error" in found else ""


async def _leave(wire: Wire, request: bytes, moment: float) -> None:
    """In the middle of the request, while it waits, computes or is answered, or when all but its end has been read."""
    if moment < 0.1:
        wire.send(request[: int(len(request) * moment * 10)])
        await asyncio.sleep(0)
    elif moment < 0.6:
        wire.send(request)
        await asyncio.sleep((moment - 0.1) ** 2)
    else:
        wire.send(request)
        for _ in range(int((moment - 0.6) * 40)):
            if not await wire.read(400):
                break
    wire.hang_up()


async def _read_slowly(wire: Wire) -> None:
    for _ in range(_MAX_PAUSES):
        await asyncio.sleep(_SLOW_PAUSE)
        if not await wire.read(_SLOW_BYTES):
            return
