"""After a step: give each sampled token to its request, end those that are done, and keep faults apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmc.runtime.errors import NonFiniteLogits, RuntimeFailure
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.step.arrays import StepBuffers


@dataclass(frozen=True)
class TokenEvent:
    """What a step did for one request: the token it chose, and why the answer ends with it, if it does.

    `token` is None where the request failed instead.
    """

    request: Request
    token: int | None
    logprobs: TokenLogprobs | None
    reason: FinishReason | None
    error: RuntimeFailure | None = None


class Commit:
    """Whatever goes wrong for one request ends that request alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def tokens(self, step: StepBuffers, sampled: Sequence[Request]) -> Iterator[TokenEvent]:
        """From the outputs of a step that has ended, whenever it was; `sampled[r]` is the request of row r."""
        tokens = step.out_tokens[: len(sampled)].tolist()
        for row, (request, token) in enumerate(zip(sampled, tokens, strict=True)):
            if request.finish_reason is None:
                yield self._token(step, request, row, token)

    def _token(self, step: StepBuffers, request: Request, row: int, token: int) -> TokenEvent:
        if token < 0:
            error = NonFiniteLogits(
                f"the model's logits after {len(request.tokens)} tokens are not finite; the request was ended"
            )
            self._scheduler.finish(request, FinishReason.ERROR)
            return TokenEvent(request, None, None, FinishReason.ERROR, error)
        request.tokens.append(token)
        reason = request.ends.reason(token, request.num_output)
        if reason is not None:
            self._scheduler.finish(request, reason)
        return TokenEvent(request, token, _logprobs(step, request.num_logprobs, row, token), reason)


def _logprobs(step: StepBuffers, count: int | None, row: int, token: int) -> TokenLogprobs | None:
    if count is None:
        return None
    ids = step.out_top_ids[row, :count].tolist()
    values = step.out_top_logprobs[row, :count].tolist()
    return TokenLogprobs(token, float(step.out_logprob[row]), tuple(zip(ids, values, strict=True)))
