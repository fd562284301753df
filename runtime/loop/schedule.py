"""Continuous batching: which tokens of which requests the next step computes. Pure Python, deterministic.

Each step: every decoding request gets its token; then prompts get chunks, the most urgent first (urgency.py), as large
as those who decode bear (time_budget.py), by what steps have taken (step_time.py). Whose prompt is to be begun is
admitted if there is a place and the pools can hold its tokens and the next one; who is of a more urgent class may take
the place of another. If a decoding request finds a pool dry, the one whose preemption hurts least gives up its blocks
and is recomputed later: since a token's choice depends on its position and its history alone, the answer is the same.
"""

import time
from collections.abc import Callable, Iterable
from operator import attrgetter

from llmc.runtime.errors import PromptTooLong
from llmc.runtime.kv.blocks import BlockManager, BlockTable
from llmc.runtime.loop.batch import Batch, Chunk
from llmc.runtime.loop.goodput import GoodputCounters
from llmc.runtime.loop.request import FinishReason, Request, RequestState
from llmc.runtime.loop.step_time import StepTimes, Work
from llmc.runtime.loop.time_budget import NO_LIMITS, TimeBudget
from llmc.runtime.loop.urgency import Patience, Urgency, by_weakness
from llmc.runtime.loop.waiting import WaitingQueue
from llmc.runtime.step.scheduling import SchedulingOptions

_LEAST_CHUNK = 4  # tokens: the most urgent prompt gets so many in every step, whoever decodes
_CHUNK_UNIT = 16  # tokens: what the time cuts off a chunk leaves whole tiles of the kernels
_by_age = attrgetter("arrival")


class Scheduler:
    """Owns the queues and the blocks. `max_batch` running requests, `max_tokens` tokens per step.

    `clock` gives seconds; nothing else tells it the time.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_batch: int,
        max_tokens: int,
        max_seq_len: int,
        options: SchedulingOptions | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 1 <= max_batch <= max_tokens:
            raise ValueError(f"need 1 <= max_batch <= max_tokens, got {max_batch} and {max_tokens}")
        self.blocks = blocks
        self.max_batch = max_batch
        self.max_tokens = max_tokens
        self.max_seq_len = max_seq_len
        self.options = options or SchedulingOptions()
        self._clock = clock
        self.times = StepTimes()
        self._targets = self.options.by_class
        self.goodput = GoodputCounters(self._targets)
        self.num_preemptions = 0
        self._budget = TimeBudget(self._targets, self.times, max_tokens)
        self._urgency = Urgency(self._targets)
        self.waiting = WaitingQueue(self._urgency, self.options.max_queued, self.options.max_queued_tokens)
        self.begin_anew(())

    @property
    def running(self) -> list[Request]:
        """Those that hold blocks."""
        return [*self._decoding, *self._prompts]

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and output together, that the envelope and the pools hold."""
        return self.blocks.longest(self.max_seq_len)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self._num_running

    def check_possible(self, prompt_len: int) -> None:
        """Raises PromptTooLong, with the figures, for a prompt that could never be answered."""
        if prompt_len + 1 > self.max_seq_len:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens and needs room for one more; max_seq_len is {self.max_seq_len}"
            )
        shortage = self.blocks.shortage(prompt_len + 1)
        if shortage is not None:
            raise PromptTooLong(f"the prompt has {prompt_len} tokens and needs {shortage}; load with more kv_memory")

    def add(self, *requests: Request) -> None:
        """Queue new requests, all or none. Raises PromptTooLong, QueueFull."""
        now = self._clock()
        for request in requests:
            assert request.state is RequestState.WAITING and request.blocks is None
            self.check_possible(len(request.tokens))
        free_places = self.max_batch - self._num_running
        self.waiting.check_room(len(requests), sum(len(r.tokens) for r in requests), free_places, now)
        for request in requests:
            request.submitted = now
            self._queue(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state; its blocks are free at once. Ending it again changes nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.state is RequestState.RUNNING:
            self._leave(request)
        else:
            self.waiting.remove(request)
            if request.prefix is not None:
                self.blocks.let_go(request.prefix)
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.goodput.finished(request, self._clock())

    def begin_anew(self, requests: Iterable[Request]) -> None:
        """After an exception in the middle of anything: whatever was held is free, `requests` have failed."""
        self.waiting.clear()
        self._decoding: list[Request] = []  # each stays at its place while others come and go, as far as that can be
        self._prompts: list[Request] = []  # under way
        self._unserved: list[Request] = []  # those of them that have no chunk of this step yet
        self._put_off: set[int] = set()  # arrivals of those that wait for what this step computes
        self._admissions, self._chunks = Patience(), Patience()
        self._work, self._began = Work(), 0.0
        self.blocks.begin_anew()
        for request in requests:
            request.state, request.blocks = RequestState.FINISHED, None
            request.finish_reason = request.finish_reason or FinishReason.ERROR

    def schedule(self) -> Batch:
        """The next step. Empty only if there is nothing to do, or nothing until a token is known.

        The caller computes it, then calls `computed`. A request whose token it has not yet been told has nothing
        pending: steps may be laid out and queued for others before an earlier one's tokens are read.
        """
        self._began = now = self._clock()
        self._put_off.clear()
        self._make_room()
        if self.options.continuous:
            self._make_way(now)
        elif not self._num_running:
            self._fill(now)
        if self.options.chunked:
            chunks = self._decode_chunks()
            self._work = Work(len(chunks), sum([chunk.start for chunk in chunks]))
            self._append_prompts(chunks, now)
        else:
            chunks, self._work = [], Work()
            self._append_prompts(chunks, now)
            if not chunks:
                chunks = self._decode_chunks()
                self._work = Work(len(chunks), sum([chunk.start for chunk in chunks]))
        if not chunks and not self.idle:
            # a token that is not told yet, or blocks of a sequence that is being scored between the steps
            awaited = any(request.num_pending == 0 for request in self.running)
            assert awaited or self.blocks.tables != self._own_tables, "requests wait but nothing could be scheduled"
        return Batch(tuple(chunks))

    def computed(self, batch: Batch, seconds: float | None = None) -> None:
        """Record that the batch's keys and values are in the cache, and give back blocks behind the windows.

        `seconds` are what the step took, or else the time since it was scheduled.
        """
        now = self._clock()
        if batch.chunks:
            seconds = now - self._began if seconds is None else seconds
            self.times.learn(self._work, seconds)
            self._budget.took(self._work, seconds)
        for chunk in batch.chunks:
            if chunk.request.state is RequestState.RUNNING:
                chunk.request.num_computed = computed = chunk.start + chunk.count
                self.blocks.computed(chunk.blocks, computed)
        for request in self._prompts[:]:
            if request.num_pending == 0:
                self._prompts.remove(request)
                self._decoding.append(request)
                if request.first_token is None:
                    request.first_token = now
            else:
                request.due = self._due(request)

    def check_integrity(self, others: Iterable[BlockTable] = ()) -> None:
        """Raises AssertionError unless queues, states and blocks agree. `others` hold blocks beside the requests."""
        self.blocks.check_integrity()
        running = self.running
        assert len(running) <= self.max_batch and len(set(running)) == len(running)
        assert all(r.state is RequestState.WAITING and r.blocks is None for r in self.waiting)
        assert all(r.state is RequestState.RUNNING and r.blocks is not None for r in running)
        assert self.blocks.tables == self._own_tables | set(others), "blocks leaked"
        self.waiting.check_integrity()

    @property
    def _own_tables(self) -> set[BlockTable | None]:
        return {request.blocks for request in self.running}

    @property
    def _num_running(self) -> int:
        return len(self._decoding) + len(self._prompts)

    def _make_room(self) -> None:
        """For the pending token of each request that decodes, if need be from those whom it hurts less."""
        for request in self._decoding[:]:
            while request.blocks is not None and not self.blocks.extend(request.blocks, request.tokens.size):
                self._preempt(by_weakness(self.running)[0][1])

    def _decode_chunks(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for request in self._decoding:
            if request.num_pending == 1:
                self._append_chunk(chunks, request, 1)
        return chunks

    def _append_prompts(self, chunks: list[Chunk], now: float) -> None:
        """Chunks of prompts, behind the `chunks` of those who decode."""
        decoding = [chunk.request for chunk in chunks]
        self._unserved = self._prompts[:]
        oldest = min(self._unserved, key=_by_age, default=None)
        admitting, limits = self.options.continuous, NO_LIMITS
        while len(decoding) + self._work.tokens < self.max_tokens:
            request = self._next_prompt(now, admitting)
            if request is None:
                break
            if request.state is RequestState.WAITING and not self._admit(request, now):
                admitting = False
                continue
            if request in self._unserved:
                self._unserved.remove(request)
            if decoding and self._work.tokens == 0:
                limits = self._budget.limits(decoding, self._work, request, now)
            if not self._append_prompt(chunks, request, self._budget.limit(limits, request)):
                break
        if oldest is not None:
            self._chunks.chosen(oldest not in self._unserved)

    def _next_prompt(self, now: float, admitting: bool) -> Request | None:
        """Of the prompts under way that have no chunk yet and of those that wait."""
        if self._unserved and self._chunks.at_its_end:
            return min(self._unserved, key=_by_age)
        waiting = None
        if admitting and self.waiting and self._num_running < self.max_batch:
            waiting = self._next_waiting(now)
        return self._urgency.first(self._unserved if waiting is None else [*self._unserved, waiting], now)

    def _admit(self, request: Request, now: float) -> bool:
        """Gives a request that waits a place and blocks, if there are some."""
        if self._num_running >= self.max_batch:
            return False
        table = self.blocks.allocate(self._room_for(request), request.prefix)
        if table is None:
            return False
        request.num_computed = table.num_computed
        if request.num_preemptions == 0:
            request.num_cached = table.num_computed
        self._admissions.chosen(request is self.waiting.oldest)
        self.waiting.depart(request, now)
        request.blocks = table
        request.state = RequestState.RUNNING
        self._prompts.append(request)
        return True

    def _make_way(self, now: float) -> None:
        """Who waits and is of a more urgent class takes the place of others, where there is none for it."""
        while self.waiting and not self._admissions.at_its_end:
            running = self.running
            if self.waiting.rank >= max((one.rank for one in running), default=0):
                return
            request = self._next_waiting(now)
            if request is None:
                return
            give_way = [one for rank, one in by_weakness(running) if rank > request.rank]
            tables = [one.blocks for one in give_way if one.blocks is not None]
            if not give_way or not self.blocks.fits_without(tables, self._room_for(request)):
                return
            while not self._admit(request, now):
                self._preempt(give_way.pop(0))

    def _next_waiting(self, now: float) -> Request | None:
        """The most urgent of those that wait, or the oldest if it is its turn.

        Who needs blocks that another one is computing, which is no less urgent, is put off: that is not done twice.
        """
        while self.waiting:
            request = self.waiting.oldest if self._admissions.at_its_end else None
            if request is None or request.arrival in self._put_off:
                request = self.waiting.first(now, self._put_off)
            if request is None or not self._is_put_off(request):
                return request
            self._put_off.add(request.arrival)
        return None

    def _is_put_off(self, request: Request) -> bool:
        tables = self.blocks.awaits(request.prefix) if request.prefix is not None else []
        urgency = request.rank, -request.priority
        return bool(tables) and any((r.rank, -r.priority) <= urgency for r in self.running if r.blocks in tables)

    def _room_for(self, request: Request) -> int:
        # One token more than is computed now: the answer's first token must not need a preemption.
        return len(request.tokens) + 1 if self.options.paged else self.max_len

    def _fill(self, now: float) -> None:
        """Static batching: all that may run from now on until the last of them has ended."""
        while self.waiting:
            request = self._next_waiting(now)
            if request is None or not self._admit(request, now):
                return

    def _append_prompt(self, chunks: list[Chunk], request: Request, limit: float) -> bool:
        """A chunk that the step has room and time for. False if there was none."""
        start, pending = request.num_computed, request.num_pending
        most = min(pending, self.max_tokens - self._work.rows - self._work.tokens)
        if not self.options.chunked:
            count = most if most == pending or not chunks else 0
        else:
            count = self.times.largest_chunk(self._work, start, most, limit)
            if count < most and count > _CHUNK_UNIT:
                count -= count % _CHUNK_UNIT
            if self._work.tokens == 0:
                count = max(count, min(most, _LEAST_CHUNK))
        if count > 0:
            self._append_chunk(chunks, request, count)
            self._work = self._work.and_prompt(start, count)
        return count > 0

    def _append_chunk(self, chunks: list[Chunk], request: Request, count: int) -> None:
        assert request.blocks is not None
        start = request.num_computed
        self.blocks.take(request.blocks, start + count)
        chunks.append(Chunk(request, request.blocks, start, count, int(count == request.num_pending)))

    def _preempt(self, request: Request) -> None:
        if request.blocks is not None:  # where they can be kept elsewhere for less than to compute them again costs
            self.blocks.keep(request.blocks, self._budget.prompt_seconds(0, request.num_computed))
        self._leave(request)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._queue(request)

    def _queue(self, request: Request) -> None:
        request.state = RequestState.WAITING
        request.due = self._due(request)
        self.waiting.add(request)

    def _due(self, request: Request) -> float:
        target = self._targets[request.latency]
        if request.first_token is not None:
            return request.first_token + target.tpot * request.num_output
        return request.submitted + target.ttft - self._budget.prompt_seconds(request.num_computed, len(request.tokens))

    def _leave(self, request: Request) -> None:
        """Give up place and blocks."""
        assert request.blocks is not None
        self.blocks.free(request.blocks)
        request.blocks = None
        if request in self._prompts:
            self._prompts.remove(request)
            return
        last = self._decoding.pop()
        if last is not request:
            self._decoding[self._decoding.index(request)] = last
