"""The answers to one prompt in the making, on the side that serves: tokens become text here, and are kept for a reader
who takes his time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmc.runtime.errors import RequestError, RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output, Timing
from llmc.runtime.process.fault_points import FAULT_POINTS
from llmc.runtime.process.wire import Row
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.tokenizer import Tokenizer

MAX_UNREAD = 1 << 20  # bytes, about
_TOKEN_BYTES, _ALTERNATIVE_BYTES = 64, 24  # of a token with its text; of each id and log-probability beside it


@dataclass
class Sample:
    """One of the answers. What the reader has not taken yet lies behind the marks of what he has; the latest token's
    output is kept as it is while it is all that there is."""

    answer: Answer
    completion: Completion | None = None
    first_token: float | None = None
    num_cached: int = 0
    last: Output | None = None  # the end, until it is taken
    taken: tuple[int, int, int, int] = (0, 0, 0, 0)
    fresh: Output | None = None
    unread: bool = False

    def grown(self, output: Output) -> None:
        """The answer has grown by this output."""
        self.fresh = None if self.unread else output
        self.unread = True

    def take(self, index: int) -> Output | None:
        """All that is new, as one output; None if nothing is."""
        if not self.unread:
            return None
        answer, (ids, pieces, logprobs, marks), last, fresh = self.answer, self.taken, self.last, self.fresh
        self.taken = len(answer.token_ids), len(answer.pieces), len(answer.logprobs), len(answer.marks)
        self.unread, self.last, self.fresh = False, None, None
        if fresh is not None:
            return fresh
        reason, error = (None, None) if last is None else (last.finish_reason, last.error)
        return Output(
            "".join(answer.pieces[pieces:]),
            tuple(answer.token_ids[ids:]),
            tuple(answer.logprobs[logprobs:]),
            reason,
            error,
            index,
            tuple(answer.marks[marks:]),
        )


class Answers:
    """Of one submission. `abort` takes a sample out of the child's queues; `begun` is told when the first token is
    there, or none will come, and `ended` once all are through."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        samples: int,
        abort: Callable[[int, FinishReason], None],
        begun: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        assert params.seed is not None
        self.prompt_len = len(prompt)
        self.params = params
        self.seed = params.seed
        self.samples = [Sample(Answer(params, tokenizer, prompt, sample)) for sample in range(samples)]
        self.changed: Callable[[], None] = lambda: None  # told whenever there is something new
        self.collected = False  # the whole is waited for: nobody is slow
        self.unread_since: float | None = None
        self._abort = abort
        self._begun: Callable[[], None] | None = begun
        self._ended = ended
        self._submitted = time.perf_counter()
        self._unread = 0  # tokens of all samples
        self._max_unread = MAX_UNREAD // (_TOKEN_BYTES + _ALTERNATIVE_BYTES * (params.logprobs or 0))

    @property
    def num_cached(self) -> int:
        """Of the first sample: what the others found was computed for it."""
        return self.samples[0].num_cached

    @property
    def done(self) -> bool:
        return all(sample.completion is not None for sample in self.samples)

    def row(self, row: Row) -> None:
        """What a step did for a sample. Whatever goes wrong in making text of it ends that sample alone."""
        sample = self.samples[row.sample]
        if sample.completion is not None:
            return  # ended here before the child knew
        sample.num_cached = max(sample.num_cached, row.cached)
        try:
            self._token(sample, row)
        except RuntimeFailure as error:
            self._end(row.sample, FinishReason.ERROR, error)
        except Exception as error:
            failure = RequestError(f"{type(error).__name__} while handling a token: {error}")
            self._end(row.sample, FinishReason.ERROR, failure)
        if self.unread_since is None:
            self.unread_since = time.monotonic()
        self._unread += 1
        if not self.collected and self._unread > self._max_unread:
            self.end(FinishReason.CANCELLED, RequestError("the reader fell behind by more than is kept for him"))
        self.changed()

    def end(self, reason: FinishReason, error: RuntimeFailure | None = None) -> None:
        """End all samples that are not finished, from outside."""
        for index, sample in enumerate(self.samples):
            if sample.completion is None:
                self._end(index, reason, error)
        self.changed()

    def take(self) -> list[Output]:
        """What is new of all samples, joined."""
        self.unread_since, self._unread = None, 0
        taken = [sample.take(index) for index, sample in enumerate(self.samples)]
        return [output for output in taken if output is not None]

    def _token(self, sample: Sample, row: Row) -> None:
        if row.token is None:
            raise row.error or RequestError("the request failed")
        FAULT_POINTS.reach("text")
        if sample.first_token is None:
            sample.first_token = time.perf_counter()
            self._tell_begun()
        output = sample.answer.accept(row.token, row.logprobs, row.reason)
        sample.grown(output)
        if output.finish_reason is not None:
            if row.reason is None:  # a stop string: the child does not know yet
                self._abort(row.sample, output.finish_reason)
            self._finish(sample, output.finish_reason, row.preemptions, None)

    def _end(self, index: int, reason: FinishReason, error: RuntimeFailure | None) -> None:
        sample = self.samples[index]
        self._abort(index, reason)
        try:
            sample.answer.interrupt()
        except Exception:  # the fault may lie in the text side itself; the tokens are kept
            sample.answer.pieces.append("")
        sample.fresh, sample.unread = None, True
        self._finish(sample, reason, 0, error)

    def _finish(self, sample: Sample, reason: FinishReason, preemptions: int, error: RuntimeFailure | None) -> None:
        now = time.perf_counter()
        sample.last = Output("", (), (), reason, error)
        sample.completion = sample.answer.completion(
            reason,
            error,
            prompt_len=self.prompt_len,
            seed=self.seed,
            num_preemptions=preemptions,
            num_cached=sample.num_cached,
            timing=Timing((sample.first_token or now) - self._submitted, now - self._submitted),
        )
        if self.done:
            self._tell_begun()
            self._ended()

    def _tell_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun()
