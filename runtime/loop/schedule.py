"""Continuous batching: which tokens of which requests the next step computes. Pure Python, deterministic.

Each step: every decoding request gets its token first; then prompts that are under way get chunks, oldest
first; then waiting requests are admitted in order of arrival while blocks, places and the token budget last.
A request is admitted only if the pools can hold its tokens and the next one. If a decoding request finds a
pool dry, the youngest running request gives up its blocks and is recomputed later: since a token's choice
depends on its position and its history alone, the answer stays the same.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from llmc.runtime.errors import PromptTooLong
from llmc.runtime.kv.blocks import BlockManager, BlockTable
from llmc.runtime.loop.request import FinishReason, Request, RequestState


@dataclass(frozen=True)
class Chunk:
    """Tokens `start`..`start + count - 1` of a request; each of its last `samples` chooses what follows it."""

    request: Request
    blocks: BlockTable
    start: int
    count: int
    samples: int


@dataclass(frozen=True)
class Batch:
    """One step's work, in the order in which the device sees it. At most one chunk per request."""

    chunks: tuple[Chunk, ...]

    @property
    def decode_only(self) -> bool:
        """Whether every sequence has one token, which is sampled. The last token of a step may be a prompt's middle."""
        return all(chunk.count == chunk.samples == 1 for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Owns the queues and the blocks. `max_batch` running requests, `max_tokens` tokens per step."""

    def __init__(self, blocks: BlockManager, max_batch: int, max_tokens: int, max_seq_len: int) -> None:
        if not 1 <= max_batch <= max_tokens:
            raise ValueError(f"need 1 <= max_batch <= max_tokens, got {max_batch} and {max_tokens}")
        self.blocks = blocks
        self.max_batch = max_batch
        self.max_tokens = max_tokens
        self.max_seq_len = max_seq_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival, which is that of admission

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and output together, that the envelope and the pools hold."""
        return self.blocks.longest(self.max_seq_len)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def check_possible(self, prompt_len: int) -> None:
        """Raises PromptTooLong, with the figures, for a prompt that could never be answered."""
        if prompt_len + 1 > self.max_seq_len:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens and needs room for one more; max_seq_len is {self.max_seq_len}"
            )
        shortage = self.blocks.shortage(prompt_len + 1)
        if shortage is not None:
            raise PromptTooLong(f"the prompt has {prompt_len} tokens and needs {shortage}; load with more kv_memory")

    def add(self, request: Request) -> None:
        """Queue a new request. Raises PromptTooLong."""
        self.check_possible(len(request.tokens))
        assert request.state is RequestState.WAITING and request.blocks is None
        self.waiting.append(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state; its blocks are free at once. Ending it again changes nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.state is RequestState.RUNNING:
            self._release(request)
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def begin_anew(self, requests: Iterable[Request]) -> None:
        """After an exception in the middle of anything: whatever was held is free, `requests` have failed."""
        self.waiting.clear()
        self.running.clear()
        self.blocks.begin_anew()
        for request in requests:
            request.state, request.blocks = RequestState.FINISHED, None
            request.finish_reason = request.finish_reason or FinishReason.ERROR

    def schedule(self) -> Batch:
        """The next step. Empty only if there is nothing to do, or nothing until a token is known.

        The caller computes it, then calls `computed`. A request whose token it has not yet been told has nothing
        pending: steps may be laid out and queued for others before an earlier one's tokens are read.
        """
        chunks = self._decode_chunks()
        budget = self.max_tokens - len(chunks)
        for request in self.running:
            if request.num_pending > 1 and budget > 0:
                budget -= self._append_chunk(chunks, request, budget)
        while self.waiting and budget > 0 and len(self.running) < self.max_batch:
            prefix = self.waiting[0].prefix
            if (prefix is not None and self.blocks.awaits(prefix)) or not self._admit(self.waiting[0]):
                break
            request = self.running[-1]
            budget -= self._append_chunk(chunks, request, budget)
        if not chunks and not self.idle:
            # a token that is not told yet, or blocks of a sequence that is being scored between the steps
            awaited = any(request.num_pending == 0 for request in self.running)
            assert awaited or self.blocks.tables != self._own_tables, "requests wait but nothing could be scheduled"
        return Batch(tuple(chunks))

    def computed(self, batch: Batch) -> None:
        """Record that the batch's keys and values are in the cache, and give back blocks behind the windows."""
        for chunk in batch.chunks:
            if chunk.request.state is RequestState.RUNNING:
                chunk.request.num_computed = chunk.start + chunk.count
                self.blocks.computed(chunk.blocks, chunk.request.num_computed)

    def check_integrity(self) -> None:
        """Raises AssertionError unless queues, states and blocks agree."""
        self.blocks.check_integrity()
        assert len(self.running) <= self.max_batch
        assert all(r.state is RequestState.WAITING and r.blocks is None for r in self.waiting)
        assert all(r.state is RequestState.RUNNING and r.blocks is not None for r in self.running)
        arrivals = [r.arrival for r in [*self.running, *self.waiting]]
        assert arrivals == sorted(arrivals), "a younger request overtook an older one"
        assert self.blocks.tables == self._own_tables, "blocks leaked"

    @property
    def _own_tables(self) -> set[BlockTable | None]:
        return {request.blocks for request in self.running}

    def _decode_chunks(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for request in list(self.running):
            if request.num_pending == 1 and self._make_room(request):
                self._append_chunk(chunks, request, 1)
        return chunks

    def _make_room(self, request: Request) -> bool:
        """Room for the request's pending token, if need be from younger ones.

        False if it was itself preempted.
        """
        while request.blocks is not None:
            if self.blocks.extend(request.blocks, len(request.tokens)):
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, request: Request) -> None:
        self._release(request)
        self.running.remove(request)
        request.state = RequestState.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, request: Request) -> bool:
        # One token more than is computed now: the answer's first token must not need a preemption.
        table = self.blocks.allocate(len(request.tokens) + 1, request.prefix)
        if table is None:
            return False
        request.num_computed = table.num_computed
        if request.num_preemptions == 0:
            request.num_cached = table.num_computed
        self.waiting.popleft()
        request.blocks = table
        request.state = RequestState.RUNNING
        self.running.append(request)
        return True

    def _append_chunk(self, chunks: list[Chunk], request: Request, budget: int) -> int:
        assert request.blocks is not None
        count = min(request.num_pending, budget)
        samples = int(count == request.num_pending)
        self.blocks.take(request.blocks, request.num_computed + count)
        chunks.append(Chunk(request, request.blocks, request.num_computed, count, samples))
        return count

    def _release(self, request: Request) -> None:
        assert request.blocks is not None
        self.blocks.free(request.blocks)
        request.blocks = None
