"""What a server needs of an engine: the seam between whoever serves and `AsyncEngine`, which runs it elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from llmc.runtime.loop.results import Completion, Output, TokenLogprobs
from llmc.runtime.loop.samples import Scorer
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.stats import EngineStats
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.text.chat import ChatTemplate, Message
from llmc.runtime.text.tokenizer import Tokenizer


class AnswerStream(Protocol):
    """The answers to one prompt as they come. Iterate it, or await `result`, or both in this order.

    Outputs of a reader who is slow are joined together. Whoever leaves the iteration for good calls `cancel`; a stream
    that nobody holds any more is cancelled as well.
    """

    @property
    def request_id(self) -> str: ...

    @property
    def prompt_len(self) -> int: ...

    @property
    def num_cached(self) -> int:
        """Prompt tokens that the prefix cache had; known once the first output is there."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    def divert(self, take: Callable[[Output], bool] | None) -> None:
        """While a reader who has all waits for more, outputs go to `take` first, in the callback that brings them: no
        task is woken for a token. Those that end an answer, and those of which it says that it did not take them, come
        out of the iteration, which also raises what `take` raises."""

    async def result(self) -> list[Completion]:
        """The `n` completions once all are finished, by sample; best first where they were chosen by `best_of`."""

    def cancel(self) -> None:
        """End what is not finished, as cancelled. Calling it again, or too late, changes nothing."""


class ServedEngine(Protocol):
    """One model at a server's disposal. `AsyncEngine` is one; a test may be served by another."""

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ChatTemplateError if the model has none."""

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams:
        """Parameters over the model's own defaults. Raises InvalidParameter."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]: ...

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        best_of: int | None = None,
        scorer: Scorer | None = None,
        latency: str = "standard",
        priority: int = 0,
        salt: str = "",
        request_id: str | None = None,
    ) -> AnswerStream:
        """Queue one prompt. Raises RequestError (InvalidParameter, PromptTooLong, QueueFull), EngineGone."""

    async def score(self, token_ids: Sequence[int], top: int = 0) -> list[TokenLogprobs]:
        """Of every token but the first, its log-probability after those before it, and the `top` best in its place."""

    def stats(self) -> EngineStats:
        """The latest snapshot."""


class State(Enum):
    """Of a process of engines. DEAD becomes STARTING again where it restarts; DRAINING ends DEAD."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class ServedProcess(Protocol):
    """The process behind a server's engines; `EngineProcess` is one."""

    @property
    def engines(self) -> Mapping[str, ServedEngine]:
        """By name, in the order given."""

    @property
    def state(self) -> State: ...

    @property
    def died(self) -> asyncio.Event:
        """Set from the moment it dies until one that was started in its place is ready."""

    @property
    def cause(self) -> str:
        """What it died of, in one line; empty while it lives."""

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no new requests, wait for those under way, and end the process. False: some had to be cut off."""

    async def close(self) -> None:
        """End it now; what is under way is cancelled."""
