"""One answer in the making: chosen tokens become text, and the text may stop it."""

from collections.abc import Sequence

from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion, Mark, Output, Timing, TokenLogprobs
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.detokenize import StreamDetokenizer
from llmc.runtime.text.stops import StopMatcher
from llmc.runtime.text.tokenizer import Tokenizer


class Answer:
    """Collects one request's output, which continues `prompt`. `sample`: which of its answers it is."""

    def __init__(
        self, params: SamplingParams, tokenizer: Tokenizer | None, prompt: Sequence[int] = (), sample: int = 0
    ) -> None:
        self._params = params
        self._detokenizer = StreamDetokenizer(tokenizer, prompt) if tokenizer else None
        self._special_ids = tokenizer.special_ids if tokenizer else frozenset()
        self._stops = StopMatcher(params.stop)
        self._sample = sample
        self.token_ids: list[int] = []
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.marks: list[Mark] = []
        self.stopped_by: int | str | None = None

    def accept(self, token: int, logprobs: TokenLogprobs | None, reason: FinishReason | None) -> Output:
        """Take the next token, which ends the answer if it has a `reason`, as a stop string in its text does.

        The output says whether the answer is finished.
        """
        self.token_ids.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        armed = len(self.token_ids) >= self._params.min_tokens
        text = ""
        marks: tuple[Mark, ...] = ()
        if reason is FinishReason.STOP:
            self.stopped_by = token
        elif self._detokenizer is not None:
            text = self._stops.feed(self._detokenizer.add(token), armed)
            if token in self._special_ids:
                marks = (Mark(self._detokenizer.num_chars, token),)
        if reason is not None and self._stops.matched is None:
            text += self._flush(armed)
        if self._stops.matched is not None:
            self.stopped_by, reason = self._stops.matched, FinishReason.STOP
        self.pieces.append(text)
        self.marks += marks
        return Output(text, (token,), (logprobs,) if logprobs is not None else (), reason, None, self._sample, marks)

    def interrupt(self) -> str:
        """The answer ends from outside: the text that was held back."""
        text = self._flush(armed=True)
        self.pieces.append(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def completion(
        self,
        reason: FinishReason,
        error: RuntimeFailure | None,
        *,
        prompt_len: int,
        seed: int,
        num_preemptions: int,
        num_cached: int,
        timing: Timing,
    ) -> Completion:
        """The whole of it, once it has ended."""
        return Completion(
            prompt_len=prompt_len,
            token_ids=tuple(self.token_ids),
            text=self.text,
            finish_reason=reason,
            stopped_by=self.stopped_by,
            seed=seed,
            logprobs=tuple(self.logprobs),
            num_preemptions=num_preemptions,
            num_cached=num_cached,
            timing=timing,
            error=error,
            marks=tuple(self.marks),
        )

    def _flush(self, armed: bool) -> str:
        text = self._stops.feed(self._detokenizer.finish(), armed) if self._detokenizer is not None else ""
        return text + self._stops.finish()
