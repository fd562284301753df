"""The answer of /v1/completions: one body, or chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmc.runtime.loop.results import Completion, Output, TokenLogprobs
from llmc.serve.protocol.answer import Head, TextChunk, Usage, event, finish_reason
from llmc.serve.protocol.completions import CompletionRequest
from llmc.serve.protocol.logprobs import LogprobBodies, Offsets


@dataclass(frozen=True)
class Echo:
    """A prompt that comes before its answers: text, ids, and log-probabilities of all but its first token."""

    text: str
    ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None


class CompletionAnswer:
    """Of one request. The choices of prompt p are p*n .. p*n + n-1."""

    def __init__(self, head: Head, request: CompletionRequest, logprobs: LogprobBodies) -> None:
        self._head = head
        self._request = request
        self._logprobs = logprobs
        self._offsets: dict[int, Offsets] = {}  # of the choices of a stream
        self._texts: dict[int, TextChunk] = {}  # their frames that say nothing but text
        self._chunk = head.body("text_completion")
        if request.generation.include_usage:
            self._chunk["usage"] = None

    def body(self, choices: Sequence[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head.body("text_completion"), "choices": list(choices), "usage": usage.body}

    def choice(self, index: int, completion: Completion | None, prompt: Echo | None) -> dict[str, Any]:
        """`completion` is None where only the prompt was asked for. Raises ApiError if the sample failed."""
        reason = finish_reason(completion.finish_reason, completion.error) if completion else "length"
        echo = prompt if prompt is not None and self._request.echo else None
        text = (echo.text if echo else "") + (completion.text if completion else "")
        choice = self._plain(index, text, reason)
        if self._request.logprobs is not None:
            choice["logprobs"] = self._all_logprobs(completion, echo)
        if prompt is not None and self._request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._logprobs.prompt(prompt.logprobs or ())
        if self._request.generation.with_ids:
            choice["token_ids"] = completion.token_ids if completion else ()
            choice["prompt_token_ids"] = list(prompt.ids) if prompt else None
        return choice

    def chunk(self, output: Output, index: int, before: str = "") -> bytes:
        """The frame of one output; `before` is an echoed prompt. Raises ApiError if the sample failed."""
        reason = None
        if output.finish_reason is not None:
            reason = finish_reason(output.finish_reason, output.error)
        text, with_ids = before + output.text, self._request.generation.with_ids
        if not text and reason is None and not output.logprobs and not with_ids:
            return b""
        if reason is None and not output.logprobs and not with_ids:
            return self._text(index).frame(text)
        choice = self._plain(index, text, reason)
        if output.logprobs:
            offsets = self._offsets.setdefault(index, self._logprobs.offsets())
            choice["logprobs"] = self._logprobs.completion(output.logprobs, output.token_ids, offsets)
        if with_ids:
            choice["token_ids"] = output.token_ids
        return event(self._chunk_of(choice))

    def _text(self, index: int) -> TextChunk:
        found = self._texts.get(index)
        if found is None:
            found = self._texts[index] = TextChunk(lambda text: self._chunk_of(self._plain(index, text, None)))
        return found

    def _plain(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    def _chunk_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._chunk, "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk, where it was asked for."""
        return event({**self._chunk, "choices": [], "usage": usage.body})

    def _all_logprobs(self, completion: Completion | None, echo: Echo | None) -> dict[str, Any]:
        entries: list[TokenLogprobs | None] = [] if echo is None else [None, *(echo.logprobs or ())]
        ids = [] if echo is None else list(echo.ids)
        answered = completion.logprobs if completion else ()
        listed = [*ids, *(one.token_id for one in answered)]
        return self._logprobs.completion([*entries, *answered], listed, self._logprobs.offsets())
