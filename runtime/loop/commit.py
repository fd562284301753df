"""After a step: give each sampled token to its request, end those that are done, and keep faults apart.

In two halves, between which the next step may begin: `read` takes the ids, which it needs, and `decide` says what they
mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmc.runtime.errors import NonFiniteLogits, RuntimeFailure
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.step.arrays import StepBuffers


@dataclass(slots=True)  # as Chosen not frozen: there is one for each row of each step
class TokenEvent:
    """What a step did for one request: the token it chose, and why the answer ends with it, if it does.

    `token` is None where the request failed instead.
    """

    request: Request
    token: int | None
    logprobs: TokenLogprobs | None
    reason: FinishReason | None
    error: RuntimeFailure | None = None


@dataclass(slots=True)
class Chosen:
    """A token that was read of a row of a step, and what it means where that had to be said at once."""

    request: Request
    step: StepBuffers
    row: int
    token: int
    event: TokenEvent | None


class Commit:
    """Whatever goes wrong for one request ends that request alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def read(self, step: StepBuffers, sampled: Sequence[Request]) -> Iterator[Chosen]:
        """From the outputs of a step that has ended, whenever it was; `sampled[r]` is the request of row r.

        What was computed of a request that has ended meanwhile is dropped. Requests that could not go on, or that need
        to know their token first, are decided here.
        """
        tokens = step.out_tokens[: len(sampled)].tolist()
        for row, (request, token) in enumerate(zip(sampled, tokens, strict=True)):
            if request.finish_reason is not None:
                continue
            if token >= 0:
                request.tokens.append(token)
            chosen = Chosen(request, step, row, token, None)
            if token < 0 or request.token_first or request.num_output >= request.ends.max_tokens:
                chosen = Chosen(request, step, row, token, self._event(chosen))
            yield chosen

    def decide(self, chosen: Iterable[Chosen]) -> Iterator[TokenEvent]:
        """What the tokens mean; ends the requests whose last one it was, whatever is under way for them."""
        for one in chosen:
            if one.event is not None:
                yield one.event
            elif one.request.finish_reason is None:
                yield self._event(one)

    def _event(self, one: Chosen) -> TokenEvent:
        request, token = one.request, one.token
        if token < 0:
            error = NonFiniteLogits(
                f"the model's logits after {len(request.tokens)} tokens are not finite; the request was ended"
            )
            self._scheduler.finish(request, FinishReason.ERROR)
            return TokenEvent(request, None, None, FinishReason.ERROR, error)
        reason = request.ends.reason(token, request.num_output)
        if reason is not None:
            self._scheduler.finish(request, reason)
        return TokenEvent(request, token, _logprobs(one.step, request.num_logprobs, one.row, token), reason)


def _logprobs(step: StepBuffers, count: int | None, row: int, token: int) -> TokenLogprobs | None:
    if count is None:
        return None
    ids = step.out_top_ids[row, :count].tolist()
    values = step.out_top_logprobs[row, :count].tolist()
    return TokenLogprobs(token, float(step.out_logprob[row]), tuple(zip(ids, values, strict=True)))
