"""What a request gives back: pieces while it streams, and the whole at the end."""

from dataclasses import dataclass

from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.request import FinishReason


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (nats, of the raw logits) of one chosen token and of the best ones, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Mark:
    """A special token among an answer's tokens, of which its text shows nothing: `at` characters of the text come
    before it.

    They separate what a model says from what it does (`[TOOL_CALLS]`), and no text can spell one.
    """

    at: int
    token_id: int


@dataclass(frozen=True)
class Output:
    """What one step added to an answer. The last one has a finish reason, and the error if that is the
    reason.

    Text may lag behind the tokens: a character's bytes may be incomplete, or the text may begin a stop
    string. So a mark may lie beyond the text that is out, and means nothing if the text ends before it.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one per token where asked for, else empty
    finish_reason: FinishReason | None
    error: RuntimeFailure | None = None
    sample: int = 0  # which of a request's answers, where it has several
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Seconds from submission to the first token and to the end; prefill rate needs `prompt_len / ttft`."""

    ttft: float
    total: float

    def tpot(self, num_tokens: int) -> float | None:
        """Seconds per output token after the first: (E2E - TTFT) / (N - 1)."""
        return (self.total - self.ttft) / (num_tokens - 1) if num_tokens > 1 else None


@dataclass(frozen=True)
class Completion:
    """A finished answer. `seed` is the one that was used, whether given or drawn.

    `token_ids` includes the end token that stopped the answer, if one did; `text` does not. `stopped_by` is
    that token's id, or the stop string. `num_cached` of the prompt's tokens were in the prefix cache. `error` is set
    exactly where `finish_reason` is ERROR.
    """

    prompt_len: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stopped_by: int | str | None
    seed: int
    logprobs: tuple[TokenLogprobs, ...]
    num_preemptions: int
    timing: Timing
    error: RuntimeFailure | None = None
    marks: tuple[Mark, ...] = ()  # among the text
    num_cached: int = 0
