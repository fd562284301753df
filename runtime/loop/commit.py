"""After a step: give each sampled token to its request, end those that are done, and keep faults apart."""

import time
from collections.abc import Sequence

from llmc.runtime.errors import NonFiniteLogits, RequestError, RuntimeFailure
from llmc.runtime.loop.handle import Live
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Output, Timing, TokenLogprobs
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.loop.turns import Turns
from llmc.runtime.step.arrays import StepBuffers


class Commit:
    """Whatever goes wrong for one request ends that request alone."""

    def __init__(self, scheduler: Scheduler, turns: Turns) -> None:
        self._scheduler = scheduler
        self._turns = turns

    def tokens(self, step: StepBuffers, sampled: Sequence[Live]) -> None:
        """From the outputs of a step that has ended, whenever it was; `sampled[r]` is the request of row r."""
        for row, live in enumerate(sampled):
            if live.completion is not None:
                continue  # a callback of an earlier row cancelled it
            try:
                self._token(step, live, row)
            except RuntimeFailure as error:
                self.fail(live, error)
            except Exception as error:
                self.fail(live, RequestError(f"{type(error).__name__} while handling a token: {error}"))

    def fail(self, live: Live, error: RuntimeFailure) -> None:
        self.end(live, FinishReason.ERROR, error)

    def end(self, live: Live, reason: FinishReason, error: RuntimeFailure | None = None) -> None:
        """Finish a request from outside its answer: cancelled or failed.

        Its last output holds the held-back text.
        """
        if live.completion is not None:
            return
        try:
            text = live.answer.interrupt()
        except Exception:
            text = ""  # the fault may lie in the text side itself; the tokens are kept
        self._finish(live, reason, error)
        self._deliver(live, Output(text, (), (), reason, error))

    def _token(self, step: StepBuffers, live: Live, row: int) -> None:
        token = int(step.out_tokens[row])
        request = live.request
        if token < 0:
            raise NonFiniteLogits(
                f"the model's logits after {len(request.tokens)} tokens are not finite; the request was ended"
            )
        if live.first_token is None:
            live.first_token = time.perf_counter()
        request.tokens.append(token)
        output = live.answer.accept(token, _logprobs(step, live, row, token))
        if output.finish_reason is not None:
            self._finish(live, output.finish_reason, None)
        self._deliver(live, output)

    def _finish(self, live: Live, reason: FinishReason, error: RuntimeFailure | None) -> None:
        now = time.perf_counter()
        self._scheduler.finish(live.request, reason)
        answer = live.answer
        live.completion = Completion(
            prompt_len=live.request.prompt_len,
            token_ids=tuple(answer.token_ids),
            text=answer.text,
            finish_reason=reason,
            stopped_by=answer.stopped_by,
            seed=live.seed,
            logprobs=tuple(answer.logprobs),
            num_preemptions=live.request.num_preemptions,
            num_cached=live.request.num_cached,
            timing=Timing((live.first_token or now) - live.submitted, now - live.submitted),
            error=error,
        )

    def _deliver(self, live: Live, output: Output) -> None:
        if live.on_output is None:
            live.outputs.append(output)
            return
        callback = live.on_output
        if live.completion is not None:
            live.on_output = None  # its last call
        try:
            self._turns.call_back(lambda: callback(output))
        except Exception as error:
            if live.completion is None:
                live.on_output = None
                self.fail(live, RequestError(f"the output callback raised {type(error).__name__}: {error}"))


def _logprobs(step: StepBuffers, live: Live, row: int, token: int) -> TokenLogprobs | None:
    count = live.params.logprobs
    if count is None:
        return None
    ids = step.out_top_ids[row, :count].tolist()
    values = step.out_top_logprobs[row, :count].tolist()
    return TokenLogprobs(token, float(step.out_logprob[row]), tuple(zip(ids, values, strict=True)))
