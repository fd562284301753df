"""One engine of the child: what the parent has asked of it, and what its steps give back."""

import contextlib
import sys
import time
import traceback
from collections.abc import Generator

from llmc.runtime.errors import RequestError, RuntimeFailure, StepFailed
from llmc.runtime.loop.commit import TokenEvent
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.process.fault_points import FAULT_POINTS
from llmc.runtime.process.tally import Tally
from llmc.runtime.process.wire import Row, Submission, unpack_ids
from llmc.runtime.step.scheduling import LatencyClass

Name = tuple[int, int]  # of a request: the parent's key, and which sample of it
ScoreEntries = list[TokenLogprobs]


class Serving:
    """Whatever goes wrong for one request ends that request alone; a step that fails ends those of this engine."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tally = Tally()
        self.requests: dict[Name, Request] = {}
        self._names: dict[Request, Name] = {}
        self.submissions: dict[int, Submission] = {}
        self._scores: dict[int, Generator[ScoreEntries]] = {}  # in order of arrival
        self._torn_scores: list[tuple[int, RuntimeFailure]] = []

    @property
    def idle(self) -> bool:
        return not self.requests and not self._scores and not self._torn_scores

    def submit(self, one: Submission) -> list[Row]:
        """Queue it. What cannot be queued has failed, and says so in the row of its first sample."""
        samples = range(one.samples)
        try:
            FAULT_POINTS.reach("submit")
            ids = unpack_ids(one.ids)
            self.core.check(ids, one.params)
            assert one.params.seed is not None
            seed, latency = one.params.seed, LatencyClass.named(one.latency)
            requests = [
                self.core.request(ids, one.params, seed, sample, one.salt, latency=latency, priority=one.priority)
                for sample in samples
            ]
            self.core.add(*requests)
        except Exception as error:
            self.tally.refused += 1
            return [_failed((one.key, sample), _as_failure(error)) for sample in samples]
        for sample, request in enumerate(requests):
            self.requests[one.key, sample] = request
            self._names[request] = (one.key, sample)
            self.tally.started += 1
        self.submissions[one.key] = one
        return []

    def abort(self, key: int, reason: FinishReason, sample: int | None = None) -> None:
        """End what is left of a request, or one sample of it, or a score; its blocks are free at once."""
        scores = self._scores.pop(key, None)
        if scores is not None:
            scores.close()
        names = [name for name in self.requests if name[0] == key] if sample is None else [(key, sample)]
        for name in names:
            request = self.requests.get(name)
            if request is not None:
                self.core.finish(request, reason)
                self._forget(request, reason)

    def score(self, key: int, ids: list[int], top: int) -> None:
        self._scores[key] = self.core.scored(ids, top)

    def step(self) -> list[Row]:
        """One step of the requests that are queued."""
        began = time.perf_counter()
        try:
            events = self.core.step()
        except Exception as error:
            return self._fail_all(error)
        if FAULT_POINTS.strikes("integrity"):
            self.core.check_integrity()
        if events is None:
            return []
        self.tally.step(self.core.last_batch, time.perf_counter() - began)
        return [self._row(event) for event in events if event.request in self._names]

    def score_chunk(self) -> tuple[int, ScoreEntries, bool, RuntimeFailure | None] | None:
        """A step of the oldest score: its key, what it gave, whether that was the last of it, and what failed."""
        if self._torn_scores:
            key, failure = self._torn_scores.pop()
            return key, [], True, failure
        if not self._scores:
            return None
        key, entries = next(iter(self._scores.items()))
        try:
            given = next(entries, None)
        except RuntimeFailure as error:
            del self._scores[key]
            return key, [], True, error
        if given is None:
            del self._scores[key]
        return key, given or [], given is None, None

    def _row(self, event: TokenEvent) -> Row:
        request = event.request
        key, sample = self._names[request]
        if event.token is not None:
            self.tally.token(request)
        if event.reason is not None:
            self._forget(request, event.reason)
        first = request.num_output == 1
        cached = request.num_cached if first else 0
        return Row(key, sample, event.token, event.logprobs, event.reason, request.num_preemptions, cached, event.error)

    def _forget(self, request: Request, reason: FinishReason) -> None:
        self.tally.ended(request, reason)
        name = self._names.pop(request)
        del self.requests[name]
        if not any(key == name[0] for key, _ in self.requests):
            self.submissions.pop(name[0], None)

    def _fail_all(self, error: Exception) -> list[Row]:
        """The step is torn: every request of the engine ends. Raises what the device says if it is beyond help."""
        if not isinstance(error, StepFailed):
            traceback.print_exc(file=sys.stderr)
            error = StepFailed(f"a step ended with {type(error).__name__}: {error}")
        failed = dict(self._names)
        for key, entries in self._scores.items():
            self._torn_scores.append((key, error))
            with contextlib.suppress(Exception):  # it may trip over what is torn as well
                entries.close()
        self._scores.clear()
        self.core.begin_anew(list(failed))
        for request in failed:
            self._forget(request, FinishReason.ERROR)
        self.core.warm_up()
        return [_failed(name, error) for name in failed.values()]


def _failed(name: Name, error: RuntimeFailure) -> Row:
    return Row(*name, None, None, FinishReason.ERROR, 0, 0, error)


def _as_failure(error: Exception) -> RuntimeFailure:
    if isinstance(error, RuntimeFailure):
        return error
    traceback.print_exc(file=sys.stderr)
    return RequestError(f"{type(error).__name__} while a request was queued: {error}")
