"""One engine of another process, for asyncio: prompts go in as text or ids, answers come out as text."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.errors import EngineGone, InvalidParameter, PromptTooLong, RuntimeFailure
from llmc.runtime.kv.prefix import checked_salt
from llmc.runtime.loop.prompts import check_ids
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.loop.samples import Choice, Scorer, checked_samples
from llmc.runtime.process.admission import Admission
from llmc.runtime.process.answers import Answers
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.frames import Message
from llmc.runtime.process.stats import EngineStats
from llmc.runtime.process.stream import Stream
from llmc.runtime.process.wire import Submission, pack_ids, plain_submission, read_logprobs, read_rows
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.scheduling import LatencyClass, SchedulingOptions
from llmc.runtime.text.chat import ChatTemplate, FittedChat
from llmc.runtime.text.chat import Message as ChatMessage
from llmc.runtime.text.model_text import ModelText
from llmc.runtime.text.tokenizer import Tokenizer

_MOST_PRIORITY = 1 << 31
_MAX_ID_CHARS = 256
_LONG_TEXT = 4096  # characters; longer ones are encoded in another thread


class AsyncEngine:
    """Made by `EngineProcess.start`. All of it runs in one event loop."""

    def __init__(
        self,
        number: int,
        facts: EngineFacts,
        text: ModelText,
        scheduling: SchedulingOptions,
        send: Callable[..., None],
    ) -> None:
        self._number = number
        self._scheduling = scheduling
        self._send = send
        self._keys = itertools.count(1)
        self._answers: dict[int, Answers] = {}
        self._scores: dict[int, tuple[list[TokenLogprobs], asyncio.Future[list[TokenLogprobs]]]] = {}
        self._gone: EngineGone | None = None  # why nothing can be asked of it now
        self.renew(facts, text)

    def renew(self, facts: EngineFacts, text: ModelText) -> None:
        """It has been loaded, for the first time or again."""
        self.facts = facts
        self._text = text
        self._stats = EngineStats()
        self._admission = Admission(facts.max_batch, self._scheduling)
        self._gone = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        return self._text.chat_template

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams:
        return self._text.sampling(params, **fields)

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def encode_chat(self, messages: Sequence[ChatMessage], **variables: Any) -> list[int]:
        return self.chat_template.encode(messages, **variables)

    def fit_chat(self, messages: Sequence[ChatMessage], max_tokens: int | None = None, **variables: Any) -> FittedChat:
        return self._text.fit_chat(messages, max_tokens, self.facts.max_len, variables)

    def stats(self) -> EngineStats:
        counters = replace(self._stats.counters, refused=self._stats.counters.refused + self._admission.refused)
        return replace(self._stats, counters=counters)

    @property
    def idle(self) -> bool:
        return not self._answers and not self._scores

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
    ) -> Stream:
        """Raises RequestError (InvalidParameter, PromptTooLong, QueueFull), EngineGone."""
        params = self.sampling(params)
        self._text.check(params)
        params.check_vocabulary(self.facts.num_valid_tokens)
        samples = checked_samples(n, best_of)
        checked_salt(salt)
        latency = LatencyClass.named(latency).value
        _checked_id(request_id)
        _checked("priority", priority, -_MOST_PRIORITY, _MOST_PRIORITY)
        ids = await self._ids(prompt)
        self._check_length(len(ids))
        self._check_alive()
        choice = Choice.of(n, samples, scorer, params)
        asked = params if choice is None else choice.asks(params)
        asked = replace(asked, seed=secrets.randbits(64) if params.seed is None else params.seed)
        key = next(self._keys)
        name = request_id or f"r{key}"
        one = Submission(key, pack_ids(ids), asked, samples, latency, priority, salt, name)
        return Stream(name, self._queue(one, ids), choice)

    def _queue(self, one: Submission, ids: Sequence[int]) -> Answers:
        """Send it to the child. Raises QueueFull."""
        admission, tokens = self._admission, one.samples * len(ids)
        admission.enter(one.samples, tokens)

        def abort(sample: int, reason: FinishReason) -> None:
            self._send("abort", self._number, one.key, sample, reason.value)

        def ended() -> None:
            admission.leave(one.samples)
            del self._answers[one.key]

        answers = Answers(ids, one.params, self.tokenizer, one.samples, abort, lambda: admission.begun(tokens), ended)
        self._answers[one.key] = answers
        self._send("submit", self._number, plain_submission(one))
        return answers

    async def score(self, token_ids: Sequence[int], top: int = 0) -> list[TokenLogprobs]:
        """Raises InvalidParameter, PromptTooLong, NonFiniteLogits, EngineGone."""
        check_ids(token_ids, self.facts.vocab_size)
        _checked("top", top, 0, MAX_LOGPROBS)
        self._check_length(len(token_ids) - 1)
        self._check_alive()
        if len(token_ids) == 1:
            return []
        key = next(self._keys)
        future: asyncio.Future[list[TokenLogprobs]] = asyncio.get_running_loop().create_future()
        self._scores[key] = [], future
        self._send("score", self._number, key, pack_ids(token_ids), top)
        try:
            return await future
        finally:
            if self._scores.pop(key, None) is not None:
                self._send("abort", self._number, key, -1, FinishReason.CANCELLED.value)

    def told_rows(self, plain: Message) -> None:
        """A step's tokens."""
        for row in read_rows(plain):
            answers = self._answers.get(row.key)
            if answers is not None:
                answers.row(row)

    def told_scored(self, key: int, plain: Message, done: bool, error: RuntimeFailure | None) -> None:
        found = self._scores.get(key)
        if found is None or found[1].done():
            return
        entries, future = found
        entries += read_logprobs(plain)
        if error is not None:
            future.set_exception(error)
        elif done:
            future.set_result(entries)
        if done:
            del self._scores[key]

    def told_stats(self, stats: EngineStats) -> None:
        self._stats = stats

    def refuse(self, error: EngineGone) -> None:
        """What is under way goes on."""
        self._gone = error

    def end_all(self, reason: FinishReason, error: EngineGone) -> None:
        """Nothing more comes of the process: whatever is under way ends, and what is asked for is refused."""
        self._gone = error
        for answers in list(self._answers.values()):
            answers.end(reason, error if reason is FinishReason.ERROR else None)
        for _, future in self._scores.values():
            if not future.done():
                future.set_exception(error)
        self._scores.clear()

    def end_stalled(self, now: float, limit: float) -> None:
        """Readers who have taken nothing for so long, although there is something, are gone."""
        for answers in list(self._answers.values()):
            since = answers.unread_since
            if not answers.collected and since is not None and now - since > limit:
                answers.end(FinishReason.CANCELLED)

    async def _ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if isinstance(prompt, str):
            return await asyncio.to_thread(self.encode, prompt) if len(prompt) > _LONG_TEXT else self.encode(prompt)
        check_ids(prompt, self.facts.vocab_size)
        return prompt

    def _check_length(self, count: int) -> None:
        """As the scheduler would say, before anything is sent."""
        if count + 1 > self.facts.max_len:
            raise PromptTooLong(
                f"the prompt has {count} tokens and needs room for one more; the engine holds {self.facts.max_len}"
            )

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise EngineGone(str(self._gone))


def _checked_id(request_id: object) -> None:
    """It is told to the child, which takes nothing amiss and ends."""
    if request_id is not None and not (isinstance(request_id, str) and len(request_id) <= _MAX_ID_CHARS):
        raise InvalidParameter(
            f"request_id must be a string of at most {_MAX_ID_CHARS} characters, got {request_id!r:.40}"
        )


def _checked(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(f"{name} must be in {low}..{high}, got {value!r:.40}")
