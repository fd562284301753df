"""An engine that answers by a script, in memory: the server's fast double of `AsyncEngine`.

Tokens are the script's, everything about text is the runtime's own: tokenizer, chat template, stops, lengths.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmc.runtime.artifact.manifest import GenerationDefaults, ModelSummary, SpecialTokens
from llmc.runtime.errors import EngineGone, InvalidParameter, PromptTooLong, RequestError, RuntimeFailure
from llmc.runtime.loop.request import Ends, FinishReason
from llmc.runtime.loop.results import Completion, Output, Timing, TokenLogprobs
from llmc.runtime.loop.samples import Scorer
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.protocol import State
from llmc.runtime.process.stats import Counters, EngineStats, PoolStats
from llmc.runtime.step.params import SamplingParams, model_defaults
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.chat import ChatTemplate, Message
from llmc.runtime.text.tokenizer import Tokenizer
from tests.runtime.engine_folders import BOS, IM_END, TEMPLATE, byte_level_tokenizer
from tests.runtime.reference_oracle import NUM_VALID, VOCAB

Script = Callable[[Sequence[int], int], Sequence[int]]  # (prompt, sample) -> the ids of its answer
MAX_LEN = 256
TEXT = "Hello there, 🦜 und grüße!\n\nThe end."
CONFIG = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}}


def says(text: str) -> Script:
    """The same answer to everything; sample k of a request says it k + 1 times."""

    def script(prompt: Sequence[int], sample: int) -> Sequence[int]:
        return [*tokenizer().encode(text * (sample + 1))[1:], IM_END]

    return script


def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), SpecialTokens(BOS, (IM_END,), None, True), CONFIG)


def facts(name: str) -> EngineFacts:
    return EngineFacts(
        name=name,
        folder=f"/engines/{name}",
        model=ModelSummary(name, "Scripted", "f32", 1, VOCAB, NUM_VALID, MAX_LEN),
        digest="",
        producer="test",
        version="test",
        device="cpu",
        target="cpu",
        max_len=MAX_LEN,
        max_seq_len=MAX_LEN,
        max_batch=8,
        max_tokens=64,
        block_tokens=16,
        num_blocks=(64,),
        weights_bytes=1000,
        kv_bytes=2000,
        arena_bytes=3000,
        token_seconds=0.001,
    )


@dataclass(eq=False)
class ScriptedEngine:
    """`gate` holds tokens back while it is clear, `score_gate` scores; `refusal` is raised by the next submissions."""

    name: str = "toy"
    script: Script = field(default_factory=lambda: says(TEXT))
    template: str | None = TEMPLATE
    max_len: int = MAX_LEN
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    refusal: RuntimeFailure | None = None
    step_seconds: float = 0
    fault_after: int | None = None  # tokens of a sample, then it fails
    fault: RuntimeFailure = field(default_factory=lambda: RequestError("the script fails here"))
    streams: list[ScriptedStream] = field(default_factory=list)
    started: int = 0
    scores: int = 0
    ended: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))

    def __post_init__(self) -> None:
        self.facts = replace(facts(self.name), max_len=self.max_len)
        self.tokenizer: Tokenizer | None = tokenizer()
        self.gate = asyncio.Event()
        self.gate.set()
        self.score_gate = asyncio.Event()
        self.score_gate.set()
        self.gone = asyncio.Event()
        assert self.tokenizer is not None
        self._template = ChatTemplate(self.template, self.tokenizer) if self.template else None
        self._ids = itertools.count()

    @property
    def chat_template(self) -> ChatTemplate:
        assert self._template is not None
        return self._template

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams:
        return SamplingParams(**{**model_defaults(self.generation, fields.get("max_tokens")), **fields})

    def encode(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        return self.chat_template.encode(messages, **variables)

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
    ) -> ScriptedStream:
        if self.refusal is not None:
            raise self.refusal
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        params = params or self.sampling()
        params.check_vocabulary(NUM_VALID)
        if not ids or any(not 0 <= token < NUM_VALID for token in ids):
            raise InvalidParameter("the prompt must hold ids that the model has, at least one")
        if len(ids) >= self.max_len:
            raise PromptTooLong(f"the prompt has {len(ids)} tokens; max_seq_len is {self.max_len}")
        asked = {"latency": latency, "priority": priority, "salt": salt, "n": n, "best_of": best_of}
        stream = ScriptedStream(self, request_id or f"r{next(self._ids)}", ids, params, n, best_of or n, asked)
        self.started += 1
        self.streams.append(stream)
        return stream

    async def score(self, token_ids: Sequence[int], top: int = 0) -> list[TokenLogprobs]:
        self.scores += 1
        await self.score_gate.wait()
        return [entry(token, top) for token in token_ids[1:]]

    def stats(self) -> EngineStats:
        reasons = {r.value: self.ended[r] for r in (FinishReason.STOP, FinishReason.LENGTH)}
        counters = Counters(
            started=self.started,
            finished=reasons,
            cancelled=self.ended[FinishReason.CANCELLED],
            failed=self.ended[FinishReason.ERROR],
        )
        running = sum(not stream.over for stream in self.streams)
        return EngineStats(running=running, kv=(PoolStats(64, 60, 3, 1),), counters=counters)


def entry(token: int, top: int) -> TokenLogprobs:
    """Log-probabilities that depend on the id alone."""
    return TokenLogprobs(token, -token / 100, tuple((token - at, -at / 100) for at in range(top) if token >= at))


@dataclass(eq=False)
class ScriptedStream:
    engine: ScriptedEngine
    request_id: str
    prompt: list[int]
    params: SamplingParams
    n: int
    num_samples: int
    asked: Mapping[str, Any]
    num_cached: int = 0
    cancelled: bool = False
    over: bool = False
    num_steps: int = 0
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)

    def cancel(self) -> None:
        self.cancelled = True

    def divert(self, take: Callable[[Output], bool] | None) -> None:
        """All of it comes out of the iteration."""

    async def result(self) -> list[Completion]:
        async for _ in self:
            pass
        return [self.completions[at] for at in range(self.num_samples)][: self.n]

    async def __aiter__(self) -> AsyncIterator[Output]:
        if self.over:
            return
        answers = [Answer(self.params, self.engine.tokenizer, self.prompt) for _ in range(self.num_samples)]
        scripts = [iter(self.engine.script(self.prompt, at)) for at in range(self.num_samples)]
        while len(self.completions) < self.num_samples:
            await self._wait()
            self.num_steps += 1
            for at in range(self.num_samples):
                if at not in self.completions:
                    yield self._step(at, answers[at], next(scripts[at], None))
        self._end()

    async def _wait(self) -> None:
        """For the gate, or for whatever ends the answer anyway."""
        await asyncio.sleep(self.engine.step_seconds)
        while not (self.engine.gate.is_set() or self.cancelled or self.engine.gone.is_set()):
            await asyncio.sleep(0.001)

    @property
    def ends(self) -> Ends:
        stop_ids = frozenset(self.params.stop_token_ids) | ({IM_END} if not self.params.ignore_eos else set())
        limit = self.engine.max_len
        most = min(self.params.max_tokens or limit, limit - len(self.prompt))
        return Ends(stop_ids, self.params.min_tokens, most)

    def _step(self, at: int, answer: Answer, token: int | None) -> Output:
        error: RuntimeFailure | None = None
        if self.engine.gone.is_set():
            error = EngineGone("the engine has died")
        elif self.engine.fault_after == len(answer.token_ids):
            error = self.engine.fault
        if error is not None or self.cancelled or token is None:
            reason = FinishReason.ERROR if error or token is None else FinishReason.CANCELLED
            output = Output(answer.interrupt(), (), (), reason, error, at)
        else:
            logprobs = None if self.params.logprobs is None else entry(token, self.params.logprobs)
            ended = self.ends.reason(token, len(answer.token_ids) + 1)
            output = _of_sample(answer.accept(token, logprobs, ended), at)
        if output.finish_reason is not None:
            self.completions[at] = self._completion(answer, output)
        return output

    def _completion(self, answer: Answer, output: Output) -> Completion:
        reason = output.finish_reason
        assert reason is not None
        return Completion(
            prompt_len=len(self.prompt),
            token_ids=tuple(answer.token_ids),
            text=answer.text,
            finish_reason=reason,
            stopped_by=answer.stopped_by,
            seed=self.params.seed or 0,
            logprobs=tuple(answer.logprobs),
            num_preemptions=0,
            timing=Timing(0.01, 0.02),
            error=output.error,
            marks=tuple(answer.marks),
        )

    def _end(self) -> None:
        self.over = True
        self.engine.ended[next(iter(self.completions.values())).finish_reason] += 1


def _of_sample(output: Output, at: int) -> Output:
    return replace(output, sample=at)


class ScriptedProcess:
    """The process behind scripted engines."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.state = State.READY
        self.died = asyncio.Event()
        self.cause = ""

    def die(self) -> None:
        self.state, self.cause = State.DEAD, "killed by signal 9"
        self.died.set()
        for engine in self.engines.values():
            engine.gone.set()

    def revive(self) -> None:
        """As a restart does."""
        for engine in self.engines.values():
            engine.gone.clear()
        self.state, self.cause = State.READY, ""
        self.died.clear()

    async def drain(self, timeout: float | None = None) -> bool:
        self.state = State.DRAINING
        streams = [stream for engine in self.engines.values() for stream in engine.streams]
        while any(not stream.over for stream in streams):
            await asyncio.sleep(0.001)
        return True

    async def close(self) -> None:
        self.state = State.DEAD
        for engine in self.engines.values():
            for stream in engine.streams:
                stream.cancel()
