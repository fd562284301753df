"""A process of engines seen from the one that serves: started, watched, ended, and started again if it dies.

async with await EngineProcess.start({"smollm2": "smollm2.engine"}) as process:
    stream = await process.engines["smollm2"].submit("Once upon a time")
    async for output in stream:
        print(output.text, end="")
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from llmc.runtime.errors import EngineGone, RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.process.async_engine import AsyncEngine
from llmc.runtime.process.launch import Child, cause_of_death
from llmc.runtime.process.link import Link
from llmc.runtime.process.loading import Loaded, load
from llmc.runtime.process.protocol import State
from llmc.runtime.process.watch import TICK, Backoff, Watching
from llmc.runtime.process.wire import Start
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.scheduling import SchedulingOptions

_END = 5.0  # seconds that a child has to end by itself


class EngineProcess:
    """One child for all engines of a server. Use `start`; drain or close it, or use it as a context manager."""

    def __init__(self, start: Start, restart: bool, watching: Watching) -> None:
        self._start = start
        self._restart = restart
        self._watching = watching
        self._engines: dict[str, AsyncEngine] = {}
        self._child: Child | None = None
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.state = State.STARTING
        self.died = asyncio.Event()
        self.cause = ""
        self.child_code: int | None = None  # exit code of a child that was closed

    @classmethod
    async def start(
        cls,
        folders: Mapping[str, str | Path],
        options: LoadOptions | None = None,
        *,
        device: str | None = None,
        restart: bool = False,
        watching: Watching | None = None,
    ) -> "EngineProcess":
        """Load engines, `folders[name]`, in a process of their own; `options` are those of `Engine.load`, for each.

        With `restart`, a process that dies is followed by another one. Raises what loading raised there: EngineError
        subclasses, InvalidParameter; EngineGone if it died of it.
        """
        plain = {name: str(Path(folder).absolute()) for name, folder in folders.items()}
        process = cls(Start(plain, options or LoadOptions(), device), restart, watching or Watching())
        try:
            process._take(await load(process._start))
        except BaseException:
            process.state = State.DEAD
            raise
        process._keeper = asyncio.create_task(process._keep())
        return process

    @property
    def engines(self) -> Mapping[str, AsyncEngine]:
        return self._engines

    @property
    def engine(self) -> AsyncEngine:
        """The only one."""
        (engine,) = self._engines.values()
        return engine

    @property
    def pid(self) -> int:
        """Of the child."""
        assert self._child is not None
        return self._child.process.pid

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no new requests, wait for those under way, end the child. False: some had to be cut off."""
        if self.state is State.READY:
            self.state = State.DRAINING
            for engine in self._engines.values():
                engine.refuse(EngineGone("the engine is being stopped; it takes no new requests"))
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.state is State.DRAINING and not self._idle:
            if deadline is not None and time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        sound = self.state is State.DRAINING and self._idle
        await self.close()
        return sound

    async def close(self) -> None:
        """End it now: what is under way is cancelled. Closing again changes nothing."""
        self.state = State.DEAD
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        self._end_all(FinishReason.CANCELLED, EngineGone("the engine is closed"))
        link, self._link = self._link, None
        if link is not None and self._child is not None:
            link.send("close")
            self.child_code = await asyncio.to_thread(self._child.wait, _END)
            link.close()
            self._child.forget()

    async def __aenter__(self) -> "EngineProcess":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _idle(self) -> bool:
        return all(engine.idle for engine in self._engines.values())

    def _take(self, loaded: Loaded) -> None:
        """From now on it is served by this child."""
        self._child, self._link = loaded.child, loaded.link
        scheduling = self._start.options.scheduling or SchedulingOptions()
        for number, (facts, text) in enumerate(zip(loaded.facts, loaded.texts, strict=True)):
            if facts.name in self._engines:
                self._engines[facts.name].renew(facts, text)
            else:
                self._engines[facts.name] = AsyncEngine(number, facts, text, scheduling, self._send)
        loaded.link.serve(list(self._engines.values()))
        self.state, self.cause = State.READY, ""
        self.died.clear()

    def _send(self, *message: Any) -> None:
        if self._link is not None:
            self._link.send(*message)

    def _end_all(self, reason: FinishReason, error: EngineGone) -> None:
        for engine in self._engines.values():
            engine.end_all(reason, error)

    async def _keep(self) -> None:
        """Watch the child; when it dies say so, and start another one if that is wanted."""
        backoff = Backoff()
        while True:
            assert self._child is not None and self._link is not None
            stuck = await self._watch(self._child, self._link)
            again = self._restart and self.state is State.READY
            await self._bury(self._child, self._link, stuck)
            if not again:
                return
            backoff.died()
            while self.state is not State.READY:
                await asyncio.sleep(backoff.pause())
                self.state = State.STARTING
                try:
                    self._take(await load(self._start))
                except RuntimeFailure as error:
                    print(f"llmc: the engine cannot be loaded again yet: {error}", file=sys.stderr)
            backoff.ready()

    async def _watch(self, child: Child, link: Link) -> str:
        """Until the child is gone. What it was stuck in, if it had to be killed for that."""
        limit = self._watching.limit(engine.facts for engine in self._engines.values())
        pings, waited = 0, 0.0
        while not link.lost.done():
            await asyncio.wait({link.lost}, timeout=TICK)
            now = time.monotonic()
            for engine in self._engines.values():
                engine.end_stalled(now, self._watching.stall_limit)
            if link.pongs == pings:
                pings, waited = pings + 1, 0.0
                link.send("ping", pings)
            else:
                waited += TICK  # not by the clock: where this process is held up, the child is not to blame
            if waited >= limit:
                child.dump_stacks()
                return f"a step took longer than {limit:g} s"
        return ""

    async def _bury(self, child: Child, link: Link, stuck: str) -> None:
        """Every stream ends with the reason, and nothing of the child is left."""
        code = await asyncio.to_thread(child.wait, 1.0 if stuck else 0.5)
        self.cause = stuck or (link.lost.result() if link.lost.done() else "") or cause_of_death(code)
        self.state = State.DEAD
        self._link = None
        link.close()
        self._end_all(FinishReason.ERROR, EngineGone(f"the engine's process died: {self.cause}"))
        self.died.set()
        stacks = child.stacks()
        child.forget()
        print(f"llmc: the engine's process died: {self.cause}", file=sys.stderr)
        if stacks:
            print(stacks, file=sys.stderr)
