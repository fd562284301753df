"""A plan on an engine in this process: no server, no client, the same records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from llmc.runtime import Engine, Output, RequestError, RequestHandle
from llmc.serve.load.plan import Planned
from llmc.serve.load.prompts import IdPrompts
from llmc.serve.load.records import Gauges, Record, Run


class _Story:
    """What is noted of one request while it runs."""

    def __init__(self, planned: Planned, prompt_len: int, begin: float, sent: float) -> None:
        self.planned, self.prompt_len, self.begin, self.sent = planned, prompt_len, begin, sent
        self.handle: RequestHandle | None = None
        self.outputs: list[float] = []
        self.tokens = 0
        self.end: float | None = None
        self.error: str | None = None

    def record(self) -> Record:
        return Record(
            self.planned,
            self.begin,
            self.sent,
            tuple(self.outputs),
            self.end if self.end is not None else self.begin,
            self.prompt_len,
            self.tokens,
            cached_tokens=self.handle.num_cached if self.handle is not None else None,
            error=self.error,
        )


class InProcess:
    """Runs plans on an engine, with one thread, its own: what a step costs is all there is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prompts = IdPrompts(range(engine.manifest.model.num_valid_tokens))

    def run(self, plan: Sequence[Planned], concurrency: int | None, seed: str, on_end: Callable[[], None]) -> Run:
        """A closed loop of `concurrency`, or else by the arrivals of the plan."""
        made = {planned.index: self._prompts.make(planned, seed) for planned in plan}
        prompts = {index: self._engine.encode(p) if isinstance(p, str) else p for index, p in made.items()}
        return _Loop(self._engine, prompts, on_end).run(plan, concurrency)


class _Loop:
    """One run."""

    def __init__(self, engine: Engine, prompts: dict[int, list[int]], on_end: Callable[[], None]) -> None:
        self._engine, self._prompts, self._on_end = engine, prompts, on_end
        self._stories: list[_Story] = []
        self._under_way: list[Planned] = []
        self._begin = 0.0
        self._steps = 0
        self._kv_peak = 0.0
        self._free_at_rest = engine.num_free_blocks

    def run(self, plan: Sequence[Planned], concurrency: int | None) -> Run:
        waiting = deque(plan)
        self._begin = time.perf_counter()
        while waiting or self._under_way:
            while waiting and self._may_join(waiting[0], concurrency):
                self._submit(waiting.popleft(), concurrency is None)
            if self._engine.step():
                self._steps += 1
                self._kv_peak = max(self._kv_peak, 1 - self._engine.num_free_blocks / self._free_at_rest)
            elif waiting and not self._under_way:
                time.sleep(max(0.0, (waiting[0].arrival or 0.0) - self._now()))
        memory = self._engine.device.memory
        held = memory.weights_bytes + memory.kv_bytes + memory.arena_bytes
        return Run(
            tuple(story.record() for story in self._stories),
            max((story.end or 0.0 for story in self._stories), default=0.0),
            gauges=Gauges(self._kv_peak, held, self._steps),
        )

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _may_join(self, planned: Planned, concurrency: int | None) -> bool:
        if concurrency is not None:
            return len(self._under_way) < concurrency
        assert planned.arrival is not None, "an open loop needs arrivals"
        return planned.arrival <= self._now()

    def _submit(self, planned: Planned, by_arrival: bool) -> None:
        now = self._now()
        prompt = self._prompts[planned.index]
        story = _Story(planned, len(prompt), (planned.arrival or 0.0) if by_arrival else now, now)
        self._stories.append(story)

        def on_output(output: Output) -> None:
            when = self._now()
            if output.token_ids:
                story.outputs.append(when)
                story.tokens += len(output.token_ids)
            if output.finish_reason is not None:
                story.end = when
                story.error = str(output.error) if output.error is not None else None
                self._under_way.remove(planned)
                self._on_end()

        self._under_way.append(planned)
        try:
            story.handle = self._engine.submit(
                prompt,
                on_output=on_output,
                latency=planned.latency or "standard",
                temperature=0.0,
                max_tokens=planned.output_len,
                ignore_eos=True,
            )
        except RequestError as error:
            story.error = str(error)
            self._under_way.remove(planned)
            self._on_end()
