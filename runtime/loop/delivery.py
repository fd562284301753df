"""From the tokens of a step to the text of answers, and to whoever waits for them."""

import time
from collections.abc import Callable, Iterable, Mapping

from llmc.runtime.errors import RequestError, RuntimeFailure
from llmc.runtime.loop.commit import TokenEvent
from llmc.runtime.loop.handle import Live
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import Output, Timing
from llmc.runtime.loop.turns import Turns


class Delivery:
    """Whatever goes wrong for one request ends that request alone. `finish` takes one out of the queues."""

    def __init__(self, finish: Callable[[Request, FinishReason], None], turns: Turns) -> None:
        self._finish_request = finish
        self._turns = turns

    def tokens(self, events: Iterable[TokenEvent], lives: Mapping[Request, Live]) -> None:
        for event in events:
            live = lives.get(event.request)
            if live is None or live.completion is not None:
                continue  # a callback of an earlier row cancelled it
            try:
                self._token(live, event)
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

    def _token(self, live: Live, event: TokenEvent) -> None:
        if event.token is None:
            assert event.error is not None
            raise event.error
        if live.first_token is None:
            live.first_token = time.perf_counter()
        output = live.answer.accept(event.token, event.logprobs, event.reason)
        if output.finish_reason is not None:
            self._finish(live, output.finish_reason, None)
        self._deliver(live, output)

    def _finish(self, live: Live, reason: FinishReason, error: RuntimeFailure | None) -> None:
        now = time.perf_counter()
        self._finish_request(live.request, reason)
        live.completion = live.answer.completion(
            reason,
            error,
            prompt_len=live.request.prompt_len,
            seed=live.seed,
            num_preemptions=live.request.num_preemptions,
            num_cached=live.request.num_cached,
            timing=Timing((live.first_token or now) - live.submitted, now - live.submitted),
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
