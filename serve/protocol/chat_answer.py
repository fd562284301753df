"""The answer of /v1/chat/completions: one body, or chunks."""

from collections.abc import Callable, Sequence
from typing import Any

from llmc.runtime.loop.results import Completion, Mark, Output, TokenLogprobs
from llmc.serve.protocol.answer import Head, TextChunk, Usage, event, finish_reason
from llmc.serve.protocol.chat import ChatRequest
from llmc.serve.protocol.delta import ChatParser, Delta
from llmc.serve.protocol.logprobs import LogprobBodies


class ChatAnswer:
    """Of one request; `parser` makes a parser for each sample."""

    def __init__(
        self, head: Head, request: ChatRequest, logprobs: LogprobBodies, parser: Callable[[], ChatParser]
    ) -> None:
        self._head = head
        self._request = request
        self._logprobs = logprobs
        self._new_parser = parser
        self._samples: dict[int, _Sample] = {}
        self._contents: dict[int, TextChunk] = {}  # their frames that say nothing but content
        self._chunk = head.body("chat.completion.chunk")
        if request.generation.include_usage:
            self._chunk["usage"] = None  # of every chunk but the last, as OpenAI's

    def body(
        self, completions: Sequence[Completion], usage: Usage, prompt_logprobs: Sequence[TokenLogprobs] | None = None
    ) -> dict[str, Any]:
        """Raises ApiError if a sample failed."""
        body = {
            **self._head.body("chat.completion"),
            "choices": [self._choice(at, completion) for at, completion in enumerate(completions)],
            "usage": usage.body,
        }
        if prompt_logprobs is not None:
            body["prompt_logprobs"] = self._logprobs.prompt(prompt_logprobs)
        return body

    def chunk(self, output: Output, sample: int) -> bytes:
        """The frame of one output, empty if there is nothing to show. Raises ApiError if the sample failed."""
        if sample not in self._samples:
            self._samples[sample] = _Sample(self._new_parser(), self._request)
        state = self._samples[sample]
        first = not state.begun
        delta = state.feed(output.text, output.marks)
        reason = None
        if output.finish_reason is not None:
            reason = finish_reason(output.finish_reason, output.error)
            delta = merged(delta, state.finish())
            reason = state.finish_reason(reason)
        with_ids = self._request.generation.with_ids
        if not delta and reason is None and not first and not output.logprobs and not with_ids:
            return b""
        if first:
            delta = {"role": "assistant", "content": "", **delta}
        plain = reason is None and not output.logprobs and not with_ids
        if plain and len(delta) == 1 and "content" in delta:
            return self._content(sample).frame(delta["content"])
        choice = self._delta(sample, delta, reason)
        if output.logprobs:
            choice["logprobs"] = self._logprobs.chat(output.logprobs)
        if with_ids:
            choice["token_ids"] = output.token_ids
        return event(self._chunk_of(choice))

    def _content(self, sample: int) -> TextChunk:
        found = self._contents.get(sample)
        if found is None:
            found = TextChunk(lambda text: self._chunk_of(self._delta(sample, {"content": text}, None)))
            self._contents[sample] = found
        return found

    def _delta(self, sample: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": sample, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _chunk_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._chunk, "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk, where it was asked for."""
        return event({**self._chunk, "choices": [], "usage": usage.body})

    def _choice(self, at: int, completion: Completion) -> dict[str, Any]:
        reason = finish_reason(completion.finish_reason, completion.error)
        state = _Sample(self._new_parser(), self._request)
        delta = merged(state.feed(completion.text, completion.marks), state.finish())
        calls = [{k: v for k, v in call.items() if k != "index"} for call in delta.get("tool_calls", ())]
        message: dict[str, Any] = {"role": "assistant", "content": delta.get("content"), "refusal": None}
        if message["content"] is None and not calls:
            message["content"] = ""
        if "reasoning_content" in delta:
            message["reasoning_content"] = delta["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        choice: dict[str, Any] = {
            "index": at,
            "message": message,
            "logprobs": self._logprobs.chat(completion.logprobs) if self._wants_logprobs else None,
            "finish_reason": state.finish_reason(reason),
        }
        if self._request.generation.with_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    @property
    def _wants_logprobs(self) -> bool:
        return self._request.generation.sampling.get("logprobs") is not None


class _Sample:
    """One answer being read."""

    def __init__(self, parser: ChatParser, request: ChatRequest) -> None:
        self._parser = parser
        self._request = request
        self._called = False
        self.begun = False

    def feed(self, text: str, marks: Sequence[Mark]) -> dict[str, Any]:
        self.begun = True
        return self._body(self._parser.feed(text, marks)) if text or marks else {}

    def finish(self) -> dict[str, Any]:
        return self._body(self._parser.finish())

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if self._called and reason == "stop" else reason

    def _body(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for delta in self._request.shown(deltas):
            body = merged(body, self._one(delta))
        return body

    def _one(self, delta: Delta) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if delta.content:
            body["content"] = delta.content
        if delta.reasoning:
            body["reasoning_content"] = delta.reasoning
        call = delta.tool_call
        if call is not None:
            self._called = True
            function = (
                {"arguments": call.arguments} if call.name is None else {"name": call.name, "arguments": call.arguments}
            )
            named = {} if call.id is None else {"id": call.id, "type": "function"}
            body["tool_calls"] = [{"index": call.index, **named, "function": function}]
        return body


def merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two deltas of a message as one: texts joined, the parts of a call too."""
    if not a or not b:
        return a or b
    joined = {**a, **b}
    for name in ("content", "reasoning_content"):
        if name in a and name in b:
            joined[name] = a[name] + b[name]
    if "tool_calls" in a and "tool_calls" in b:
        joined["tool_calls"] = _joined_calls(a["tool_calls"], b["tool_calls"])
    return joined


def _joined_calls(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = {call["index"]: call for call in a}
    for call in b:
        before = calls.get(call["index"])
        if before is not None:
            arguments = before["function"]["arguments"] + call["function"]["arguments"]
            function = {**before["function"], **call["function"], "arguments": arguments}
            call = {**before, **call, "function": function}
        calls[call["index"]] = call
    return list(calls.values())
