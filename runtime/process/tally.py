"""What an engine has done since it was loaded, in numbers."""

from collections import Counter
from collections.abc import Mapping

from llmc.runtime.loop.batch import Batch
from llmc.runtime.loop.goodput import Goodput
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.process.stats import Counters, StepStats
from llmc.runtime.step.scheduling import LatencyClass

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class Tally:
    """Every request that was queued ends once: finished, cancelled or failed."""

    def __init__(self) -> None:
        self.started = self.refused = self.steps = 0
        self.last = StepStats()
        self._ends: Counter[FinishReason] = Counter()
        self._preempted = self._prompt_tokens = self._generated_tokens = 0

    def step(self, batch: Batch, seconds: float) -> None:
        self.steps += 1
        rows = sum(chunk.samples for chunk in batch.chunks)
        self.last = StepStats("decode" if batch.decode_only else "prefill", batch.num_tokens, rows, seconds)

    def token(self, request: Request) -> None:
        """A token was chosen for it; the first one says that its prompt was computed."""
        self._generated_tokens += 1
        if request.num_output == 1:
            self._prompt_tokens += request.prompt_len

    def ended(self, request: Request, reason: FinishReason) -> None:
        self._ends[reason] += 1
        self._preempted += request.num_preemptions

    def counters(self, running_preempted: int, goodput: Mapping[LatencyClass, Goodput]) -> Counters:
        """`running_preempted`: preemptions of those that have not ended."""
        return Counters(
            started=self.started,
            finished={reason.value: self._ends[reason] for reason in _ANSWERED},
            cancelled=self._ends[FinishReason.CANCELLED],
            failed=self._ends[FinishReason.ERROR],
            preempted=self._preempted + running_preempted,
            refused=self.refused,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            steps=self.steps,
            answered={one.value: good.finished for one, good in goodput.items()},
            goodput={one.value: good.met for one, good in goodput.items()},
        )
