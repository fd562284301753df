"""What all answers have: who gives them, what they cost, why they end, and how a stream is written."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from llmc.runtime.errors import EngineGone, InvalidParameter, PromptTooLong, QueueFull, RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion
from llmc.serve.protocol.errors import ApiError, from_failure

DONE = b"data: [DONE]\n\n"
REFUSALS = (QueueFull, PromptTooLong, InvalidParameter)  # by the engine's process, of a request that it never began
ENDINGS = (EngineGone, *REFUSALS)


@dataclass(frozen=True)
class Head:
    """`id` is the server's own, whatever a client sends; `model` is the name that the engine is served under."""

    id: str
    model: str
    created: int

    @classmethod
    def new(cls, prefix: str, model: str) -> "Head":
        return cls(f"{prefix}-{secrets.token_hex(16)}", model, int(time.time()))

    def body(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True)
class Usage:
    """In tokens. `num_cached` of the prompt's came from the prefix cache, under the request's own salt."""

    num_prompt: int
    num_output: int
    num_cached: int = 0

    @classmethod
    def of(cls, completions: Sequence[Completion], num_cached: int) -> "Usage":
        """Of all samples of one prompt."""
        prompt = completions[0].prompt_len if completions else 0
        return cls(prompt, sum(len(one.token_ids) for one in completions), num_cached)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.num_prompt + other.num_prompt,
            self.num_output + other.num_output,
            self.num_cached + other.num_cached,
        )

    @property
    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_prompt + self.num_output,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        }


def finish_reason(reason: FinishReason, error: RuntimeFailure | None) -> str:
    """`stop` or `length`. Raises ApiError for an answer that was ended by anything else."""
    if isinstance(error, ENDINGS):
        raise from_failure(error)
    if reason is FinishReason.ERROR:
        raise ApiError(500, str(error or "the answer failed"), code="answer_failed")
    if reason is FinishReason.CANCELLED:
        raise ApiError(503, "the answer was cancelled by the server", code="cancelled")
    return str(reason.value)


class TextChunk:
    """A stream's frames that differ in one text alone: `body(text)` is serialised once."""

    def __init__(self, body: Callable[[str], dict[str, Any]]) -> None:
        hole = secrets.token_hex(16)
        self._before, self._after = event(body(hole)).split(orjson.dumps(hole))

    def frame(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, orjson.dumps(text), self._after)


def event(body: dict[str, Any]) -> bytes:
    """One frame of a stream of server-sent events."""
    return b"data: " + orjson.dumps(body) + b"\n\n"
