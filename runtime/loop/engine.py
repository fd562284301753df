"""The engine at work: load an engine folder, submit requests, step until they are answered.

    with Engine.load("smollm2") as engine:
        print(engine.generate(["Once upon a time"], max_tokens=32)[0].text)

Tokens come from the core (core.py), and text is made of them here. One thread drives an engine; nothing runs between
calls of `step`. Who comes in during a call, another thread or a signal handler, is refused (runtime/loop/turns.py).
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.artifact.features import Machine
from llmc.runtime.device.protocol import Device
from llmc.runtime.errors import InvalidParameter, QueueFull, RuntimeFailure, StepFailed
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.loop.delivery import Delivery
from llmc.runtime.loop.handle import Live, RequestHandle, SamplesHandle
from llmc.runtime.loop.prompts import check_ids
from llmc.runtime.loop.request import FinishReason, Request
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.loop.samples import Choice, Scorer, checked_samples
from llmc.runtime.loop.turns import Turns
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.scheduling import LatencyClass, SchedulingOptions
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.chat import ChatTemplate, FittedChat, Message
from llmc.runtime.text.model_text import ModelText
from llmc.runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class Engine:
    """A loaded engine. Use `Engine.load`; close it, or use it as a context manager."""

    def __init__(self, artifact: Artifact, device: Device, max_batch: int, tokenizer: Tokenizer | None) -> None:
        self._take(EngineCore(artifact, device, max_batch), ModelText.of(artifact, tokenizer))

    def _take(self, core: EngineCore, text: ModelText) -> None:
        self.core = core
        self.artifact = core.artifact
        self.manifest = core.artifact.manifest
        self.device = core.device
        self.tokenizer = text.tokenizer
        self._text = text
        self._turns = Turns()
        self._torn = False  # a call has begun that has not ended: queues and blocks may contradict each other
        self._delivery = Delivery(core.finish, self._turns)
        self._live: dict[Request, Live] = {}

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        max_batch: int | None = None,
        max_seq_len: int | None = None,
        max_tokens: int | None = None,
        max_rows: int | None = None,
        threads: int | None = None,
        kv_memory: int | None = None,
        device: str | None = None,
        serial: bool = False,
        prefix_cache: bool = True,
        swap_memory: int | None = None,
        scheduling: SchedulingOptions | None = None,
        machine: Machine | None = None,
    ) -> "Engine":
        """Check an engine folder, map its weights, get its device ready.

        `max_batch`, `max_seq_len` and `max_tokens` (per step) lie within the envelope the engine was built
        for and default to it; `max_rows` bounds how many rows of logits one step can return (default:
        `max_batch`); `threads` defaults to the usable cores; `kv_memory` is the KV pools in bytes and defaults
        to what the envelope can use, but at most half of the free memory, or what a GPU has free. The engine's first
        target that this machine can run is taken, CUDA before CPU; `device`, cpu or cuda, asks for one kind. With
        `serial` a GPU's kernels are launched one by one, slowly, and a fault names its kernel. Without `prefix_cache`
        no request finds what an earlier one computed. `swap_memory`: bytes of pinned host memory for what requests
        computed that a GPU has to preempt, by default a quarter of the KV pools, at most 1 GiB; 0 for none.
        `scheduling`: targets of latency, bounds of the queue. Raises EngineError subclasses, InvalidParameter.
        """
        scheduling = scheduling or SchedulingOptions()
        options = LoadOptions(
            max_batch=max_batch,
            max_seq_len=max_seq_len,
            max_tokens=max_tokens,
            max_rows=max_rows,
            threads=threads,
            kv_memory=kv_memory,
            serial=serial,
            prefix_cache=prefix_cache,
            swap_memory=swap_memory,
            scheduling=scheduling,
        )
        texts: list[ModelText] = []
        core = EngineCore.load(
            Path(path), options, machine, device, lambda artifact: texts.append(ModelText.load(artifact))
        )
        engine = cls.__new__(cls)
        engine._take(core, texts[-1])
        return engine

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        best_of: int | None = None,
        scorer: Scorer | None = None,
        salt: str = "",
        **fields: Any,
    ) -> list[Completion]:
        """Answer all prompts, batched; `n` completions per prompt, in order.

        `params` is one for all or one per prompt; keyword arguments are fields of SamplingParams over the
        model's defaults, `best_of` and `scorer` are those of `samples`, `salt` is that of `submit`. A request that
        fails while it runs, or whose samples cannot be scored, has its `error` set; the others are not affected.
        Raises RequestError, before anything runs, if any prompt or parameter is refused.
        """
        if isinstance(prompts, str | bytes):
            raise InvalidParameter("prompts is a list: give [prompt], not the prompt itself")
        if not isinstance(prompts, Sequence | np.ndarray):
            raise InvalidParameter(f"prompts is a list of prompts, got {type(prompts).__name__}")
        if params is None or isinstance(params, SamplingParams):
            each = [self.sampling(params, **fields)] * len(prompts)
        elif isinstance(params, Sequence):
            each = [self.sampling(one, **fields) for one in params]
        else:
            raise InvalidParameter(f"params must be SamplingParams or a list of them, got {type(params).__name__}")
        if len(each) != len(prompts):
            raise InvalidParameter(f"{len(prompts)} prompts but {len(each)} sampling parameters")
        checked_samples(n, best_of)
        ids = [self._checked_prompt(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        handles: list[SamplesHandle] = []
        try:
            for prompt, one in zip(ids, each, strict=True):
                submit = partial(self.samples, prompt, one, n=n, best_of=best_of, scorer=scorer, salt=salt)
                handles.append(self._in_time(submit))
            return [completion for handle in handles for completion in handle.results()]
        finally:
            for handle in handles:
                handle.cancel()

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_output: Callable[[Output], None] | None = None,
        salt: str = "",
        latency: str = "standard",
        priority: int = 0,
        **fields: Any,
    ) -> RequestHandle:
        """Queue one request. Iterate the handle for its outputs as they come, or let `step` call `on_output`.

        Keys and values of a prefix that an earlier request of the same `salt` computed are not computed again.
        `latency` is its class, interactive, standard or batch; a higher `priority` goes first within it. Raises
        RequestError; it is QueueFull if too many wait. An exception that `on_output` raises ends that request alone.
        """
        params = self.sampling(params, **fields)
        (handle,) = self._submit(prompt, params, [on_output], salt, latency, priority)
        return handle

    def samples(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        best_of: int | None = None,
        scorer: Scorer | None = None,
        on_output: Callable[[Output], None] | None = None,
        salt: str = "",
        latency: str = "standard",
        priority: int = 0,
        **fields: Any,
    ) -> SamplesHandle:
        """Queue a request for `n` answers, all or none: as `submit`, with `output.sample` telling which it belongs to.

        The prompt is computed once. With `best_of`, so many are drawn, and those are given back that the `scorer` likes
        most, any function of a Completion, or that are the likeliest. With a seed, sample 0 is the answer of `submit`.
        """
        params = self.sampling(params, **fields)
        count = checked_samples(n, best_of)
        choice = Choice.of(n, count, scorer, params)
        told = [on_output and partial(_tell, on_output, sample) for sample in range(count)]
        asked = params if choice is None else choice.asks(params)
        return SamplesHandle(self._submit(prompt, asked, told, salt, latency, priority), choice)

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        on_output: Sequence[Callable[[Output], None] | None],
        salt: str,
        latency: str,
        priority: int,
    ) -> list[RequestHandle]:
        """One request for each of `on_output`: samples of one seed."""
        ids = self._checked_prompt(prompt, params)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        urgency = LatencyClass.named(latency)
        lives = []
        for sample, told in enumerate(on_output):
            request = self.core.request(ids, params, seed, sample, salt, latency=urgency, priority=priority)
            lives.append(Live(request, Answer(params, self.tokenizer, ids), params, seed, told))
        with self._change():
            self.core.add(*(live.request for live in lives))
            self._live.update((live.request, live) for live in lives)
        return [RequestHandle(live, self.step, partial(self._cancel, live.request)) for live in lives]

    def _in_time(self, submit: Callable[[], SamplesHandle]) -> SamplesHandle:
        """Submit once the queue has room, for whose sake steps are run."""
        while True:
            try:
                return submit()
            except QueueFull:
                if not self.step():
                    raise

    def step(self) -> bool:
        """Run one step; False if there is nothing to do.

        RequestError inside an output callback or a signal handler, and while another thread drives the engine: the
        requests go on. Raises StepFailed if the device fails. Whatever other exception leaves this function,
        KeyboardInterrupt included, has ended every request as failed: what the cache holds is unknown then, so no
        answer can be trusted. The engine itself is sound again.
        """
        with self._turn(harmless=()):
            return self._step()

    def _step(self) -> bool:
        events = self.core.step()
        if events is None:
            return False
        self._delivery.tokens(events, self._live)
        self._forget([event.request for event in events])
        return True

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams:
        """Sampling parameters from keyword arguments, over `params` or else over the model's own defaults."""
        return self._text.sampling(params, **fields)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, BOS before it if the model wants one."""
        return self._text.encode(text)

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Ids of a conversation by the model's chat template, ready for the answer.

        Raises ChatTemplateError.
        """
        return self.chat_template.encode(messages, **variables)

    def fit_chat(self, messages: Sequence[Message], max_tokens: int | None = None, **variables: Any) -> FittedChat:
        """As `encode_chat`, without the oldest turns where they leave no room for an answer.

        Room is for `max_tokens`, but of no more than a quarter of the context. Raises ChatTemplateError.
        """
        return self._text.fit_chat(messages, max_tokens, self.core.max_len, variables)

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ChatTemplateError if the model has none."""
        return self._text.chat_template

    def logits(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        chunks: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Raw logits [R, vocab] at positions `rows` (default: all) of a sequence, computed in `chunks`.

        `chunks` are token counts that add up to the length; by default as large as `max_tokens` and
        `max_rows` allow. Raises RequestError.
        """
        check_ids(token_ids, self.manifest.model.vocab_size)
        with self._turn():
            return self.core.logits(token_ids, rows, chunks)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log-probability [n-1] of each token but the first, given those before it. Raises RequestError."""
        check_ids(token_ids, self.manifest.model.vocab_size)
        with self._turn():
            return self.core.score(token_ids)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks of all groups that no request holds or was promised."""
        return self.core.blocks.num_free

    def check_integrity(self) -> None:
        """Raises AssertionError unless queues and blocks agree; for tests and for idle moments."""
        self.core.check_integrity()

    def close(self) -> None:
        """End every request as cancelled, stop the threads, unmap the weights.

        Closing again changes nothing. RequestError while another thread drives the engine, and in a signal handler.
        """
        with self._change():
            for live in list(self._live.values()):
                self._end(live)
            self.core.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cancel(self, request: Request) -> None:
        with self._change():
            live = self._live.get(request)
            if live is not None:
                self._end(live)

    def _end(self, live: Live) -> None:
        self._delivery.end(live, FinishReason.CANCELLED)
        self._forget([live.request])

    @contextlib.contextmanager
    def _turn(self, harmless: type[Exception] | tuple[()] = RuntimeFailure) -> Iterator[None]:
        """For one call that changes queues, blocks or cache. Raises RequestError during another.

        Any exception but a `harmless` one, which is raised before anything is half done, has torn what it interrupts:
        every request ends and the bookkeeping begins anew, at the latest when the next turn begins.
        """
        with self._turns.turn():
            if self._torn:
                self._fail_all(StepFailed("a call before was interrupted"))
            self._torn = True
            try:
                yield
            except harmless:
                self._torn = False
                raise
            except BaseException as error:
                self._fail_all(error)
                raise
            self._torn = False

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """For what an output callback may do in the middle of a turn; for others it is a turn."""
        if self._turns.in_callback:
            yield
        else:
            with self._turn():
                yield

    def _fail_all(self, error: BaseException) -> None:
        """End every request as failed, with all blocks free, whatever state the bookkeeping is in."""
        cause = error if isinstance(error, StepFailed) else StepFailed(f"a call ended with {type(error).__name__}")
        lives = list(self._live.values())
        self.core.begin_anew([live.request for live in lives])
        for live in lives:
            # A callback that is told of the failure may interrupt again: the others are failed all the same, and
            # `error` is what the caller sees.
            with contextlib.suppress(BaseException):
                self._delivery.fail(live, cause)
        self._forget([live.request for live in lives])
        self._torn = any(live.completion is None for live in lives)

    def _forget(self, requests: Sequence[Request]) -> None:
        """Those that are finished are nobody's any more."""
        for request in requests:
            live = self._live.get(request)
            if live is not None and live.completion is not None:
                del self._live[request]

    def _checked_prompt(self, prompt: Prompt, params: SamplingParams) -> Sequence[int]:
        self._text.check(params)
        ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        self.core.check(ids, params)
        return ids


def _tell(on_output: Callable[[Output], None], sample: int, output: Output) -> None:
    on_output(replace(output, sample=sample))
