"""The engine at token level: requests of ids go in, every step gives tokens. It knows no text and nobody who waits.

One step is schedule -> lay out -> execute (sampling included) -> commit. Whoever drives it makes text of the tokens,
and ends requests whose text says so: `Engine` in the caller's thread, `runtime/process/` in a process of its own.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.artifact.artifact import Artifact, identity, open_artifact
from llmc.runtime.artifact.features import Machine
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.device.open_device import open_device
from llmc.runtime.device.protocol import Device
from llmc.runtime.errors import EngineError
from llmc.runtime.kv.blocks import BlockManager
from llmc.runtime.kv.pool_sizes import retentions
from llmc.runtime.kv.prefix import PrefixChain, checked_salt, root_of
from llmc.runtime.loop.batch import Batch
from llmc.runtime.loop.commit import Chosen, Commit, TokenEvent
from llmc.runtime.loop.prompts import check_ids
from llmc.runtime.loop.request import Ends, FinishReason, Request, TokenHistory
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.loop.running import Running
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.loop.score import Scorer
from llmc.runtime.step.arrays import StepBuffers
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.row_sampling import RowSampling
from llmc.runtime.step.scheduling import LatencyClass, SchedulingOptions


class EngineCore:
    """A loaded engine. One thread drives it, and an exception that leaves `step` in its middle has torn it: then
    `begin_anew` makes it sound again."""

    def __init__(
        self,
        artifact: Artifact,
        device: Device,
        max_batch: int,
        scheduling: SchedulingOptions | None = None,
        *,
        prefix_cache: bool = True,
    ) -> None:
        self.artifact = artifact
        self.device = device
        limits = device.limits
        groups = retentions(artifact.target.kv, limits.max_tokens)
        swap = device.swap_space
        self.blocks = BlockManager(groups, device.num_blocks, prefix_cache=prefix_cache, swap=swap)
        self._content = artifact.content_digest
        self.scheduler = Scheduler(self.blocks, max_batch, limits.max_tokens, limits.max_seq_len, scheduling)
        self._running = Running(device)
        self._landed: list[Chosen] = []  # tokens that were read of a step, and not decided yet
        self._commit = Commit(self.scheduler)
        self._arrivals = 0
        self.last_batch = Batch(())  # of the last step
        model = artifact.manifest.model
        buffers = StepBuffers(device.limits)
        self._scorer = Scorer(device, self.blocks, buffers, model.vocab_size, model.num_valid_tokens)

    @classmethod
    def load(
        cls,
        folder: Path,
        options: LoadOptions,
        machine: Machine | None = None,
        device: str | None = None,
        while_hashing: Callable[[Artifact], None] | None = None,
        threads: SharedThreads | None = None,
    ) -> "EngineCore":
        """Check an engine folder, map its weights, get its device ready. Raises EngineError, InvalidParameter.

        `while_hashing` is called while another thread hashes the weights, possibly more than once. `threads` are those
        of several engines on a CPU.
        """
        while True:
            before = identity(folder)
            try:
                return cls._load(folder, options, machine, device, while_hashing, threads)
            except EngineError:
                # A build may have put another engine there between two files: no damage, a reason to begin anew.
                if identity(folder) == before:
                    raise

    @classmethod
    def _load(
        cls,
        folder: Path,
        options: LoadOptions,
        machine: Machine | None,
        device: str | None,
        while_hashing: Callable[[Artifact], None] | None,
        threads: SharedThreads | None,
    ) -> "EngineCore":
        devices: list[Device] = []

        def meanwhile(artifact: Artifact) -> None:
            devices.append(open_device(artifact, options, threads))
            if while_hashing is not None:
                while_hashing(artifact)

        artifact: Artifact | None = None
        try:
            artifact = open_artifact(folder, machine, meanwhile, device)
            max_batch = devices[0].limits.max_seqs
            return cls(artifact, devices[0], max_batch, options.scheduling, prefix_cache=options.prefix_cache)
        except BaseException:
            for opened in devices:
                opened.close()
            if artifact is not None:
                artifact.close()
            raise

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        return self.scheduler.max_len

    def check(self, ids: Sequence[int], params: SamplingParams) -> None:
        """Raises RequestError if the request could never be answered."""
        model = self.artifact.manifest.model
        params.check_vocabulary(model.num_valid_tokens)
        check_ids(ids, model.vocab_size)
        self.scheduler.check_possible(len(ids))

    def request(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        seed: int,
        sample: int = 0,
        salt: str = "",
        *,
        latency: LatencyClass = LatencyClass.STANDARD,
        priority: int = 0,
    ) -> Request:
        """A request that `check` has let pass, not queued yet. It shares prefixes with others of the same salt.

        Raises InvalidParameter for a salt that is none.
        """
        eos = frozenset() if params.ignore_eos else frozenset(self.artifact.manifest.tokens.eos)
        stop_ids = eos | frozenset(params.stop_token_ids)
        room = self.max_len - len(ids)
        ends = Ends(stop_ids, params.min_tokens, room if params.max_tokens is None else min(room, params.max_tokens))
        rows = RowSampling(params, seed, len(ids), stop_ids, sample)
        history, root = TokenHistory(ids), root_of(self._content, "", checked_salt(salt))
        prefix, first = PrefixChain(history, root), params.penalises
        return Request(-1, history, len(ids), rows, ends, params.logprobs, prefix, latency, priority, first)

    def add(self, *requests: Request) -> None:
        """Queue them, all or none. Raises PromptTooLong, QueueFull."""
        for request in requests:
            request.arrival = self._arrivals
            self._arrivals += 1
        self.scheduler.add(*requests)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state; its blocks are free at once. A finished one stays as it is."""
        self.scheduler.finish(request, reason)

    def step(self) -> Sequence[TokenEvent] | None:
        """Run one step and say what came of it; None if there is nothing to do. Raises StepFailed.

        With a device that computes meanwhile, the next step is begun as soon as the ids of the last one are read, and
        what they mean is decided, and told, while it runs. A request that turns out to have ended is in that step all
        the same: what it computes for it is dropped.
        """
        self._land()
        batch = self.scheduler.schedule()
        if batch.chunks:
            self.last_batch = batch
            if copies := self.blocks.take_copies():
                self.device.copy_blocks(copies)
            self._running.begin(batch)
            if not self._running.ahead:
                self._land()
        elif not self._landed:
            return None
        chosen, self._landed = self._landed, []
        return list(self._commit.decide(chosen))

    def _land(self) -> None:
        """Wait for the step that is under way, and read its ids."""
        landed = self._running.land()
        if landed is not None:
            self.scheduler.computed(landed.batch)
            self._landed += self._commit.read(landed.step, landed.sampled)

    def logits(
        self, token_ids: Sequence[int], rows: Sequence[int] | None = None, chunks: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """As `Engine.logits`."""
        self._land()
        return self._scorer.logits(token_ids, rows, chunks)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """As `Engine.score`."""
        self._land()
        return self._scorer.score(token_ids)

    def scored(self, token_ids: Sequence[int], top: int) -> Generator[list[TokenLogprobs]]:
        """Log-probabilities of every token but the first, with the `top` best in its place, a step at a time.

        To be gone on with between the steps of requests; an empty list says that it waits for blocks. Raises
        RequestError.
        """
        check_ids(token_ids, self.artifact.manifest.model.vocab_size)
        self.scheduler.check_possible(len(token_ids) - 1)
        with contextlib.closing(self._scorer.entries(token_ids, top)) as scored:
            self._land()
            for entries in scored:
                yield entries
                self._land()  # whoever has gone on meanwhile with the step of requests

    def warm_up(self) -> float:
        """Two steps of one token whose outcome nobody sees; seconds of the second. Raises StepFailed."""
        for _ in range(2):
            began = time.perf_counter()
            self._scorer.logits([self.artifact.manifest.tokens.bos or 0], None, None)
        return time.perf_counter() - began

    def begin_anew(self, requests: Iterable[Request]) -> None:
        """After an exception in the middle of anything: whatever was held is free, `requests` have failed."""
        self._running.drop()
        self._landed = []
        self.scheduler.begin_anew(requests)

    def check_integrity(self) -> None:
        """Raises AssertionError unless queues and blocks agree."""
        self.scheduler.check_integrity(self._scorer.tables)

    def close(self) -> None:
        """Stop the threads, unmap the weights. Closing again changes nothing."""
        self._running.drop()
        self.device.close()
        self.artifact.close()
