"""The engine at work: load an engine folder, submit requests, step until they are answered.

    with Engine.load("smollm2") as engine:
        print(engine.generate(["Once upon a time"], max_tokens=32)[0].text)

One step is schedule -> lay out -> execute (sampling included) -> commit. One thread drives an engine; nothing
runs between calls of `step`. Who comes in during a call, another thread or a signal handler, is refused
(runtime/loop/turns.py).
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.artifact.artifact import TOKENIZER, Artifact, identity, open_artifact
from llmc.runtime.artifact.features import Machine
from llmc.runtime.device.open_device import open_device
from llmc.runtime.device.protocol import Device
from llmc.runtime.errors import ChatTemplateError, EngineError, InvalidParameter, RuntimeFailure, StepFailed
from llmc.runtime.kv.blocks import BlockManager
from llmc.runtime.kv.pool_sizes import retentions
from llmc.runtime.kv.prefix import PrefixChain, checked_salt, root_of
from llmc.runtime.loop.commit import Commit
from llmc.runtime.loop.handle import Live, RequestHandle
from llmc.runtime.loop.layout import lay_out
from llmc.runtime.loop.request import FinishReason, Request, TokenHistory
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.loop.score import Scorer
from llmc.runtime.loop.turns import Turns
from llmc.runtime.step.arrays import StepBuffers
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.params import SamplingParams, model_defaults
from llmc.runtime.step.row_sampling import RowSampling
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.chat import ChatTemplate, FittedChat, Message
from llmc.runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class Engine:
    """A loaded engine. Use `Engine.load`; close it, or use it as a context manager."""

    def __init__(
        self,
        artifact: Artifact,
        device: Device,
        max_batch: int,
        tokenizer: Tokenizer | None,
        *,
        prefix_cache: bool = True,
    ) -> None:
        self.artifact = artifact
        self.manifest = artifact.manifest
        self.device = device
        self.tokenizer = tokenizer
        # Read now, because another engine may lie at the path later; compiled when it is first needed.
        self._template_source = ChatTemplate.source(artifact, tokenizer) if tokenizer else None
        self._template: ChatTemplate | None = None
        groups = retentions(artifact.target.kv, device.limits.max_tokens)
        self._blocks = BlockManager(groups, device.num_blocks, prefix_cache=prefix_cache)
        self._cache_identity = artifact.content_digest
        self._scheduler = Scheduler(self._blocks, max_batch, device.limits.max_tokens, device.limits.max_seq_len)
        self._buffers = StepBuffers(device.limits)
        self._turns = Turns()
        self._torn = False  # a call has begun that has not ended: queues and blocks may contradict each other
        self._commit = Commit(self._scheduler, self._turns)
        self._live: dict[Request, Live] = {}
        self._arrivals = 0
        model = self.manifest.model
        self._scorer = Scorer(device, self._blocks, self._buffers, model.vocab_size, model.num_valid_tokens)

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
        machine: Machine | None = None,
    ) -> "Engine":
        """Check an engine folder, map its weights, get its device ready.

        `max_batch`, `max_seq_len` and `max_tokens` (per step) lie within the envelope the engine was built
        for and default to it; `max_rows` bounds how many rows of logits one step can return (default:
        `max_batch`); `threads` defaults to the usable cores; `kv_memory` is the KV pools in bytes and defaults
        to what the envelope can use, but at most half of the free memory, or what a GPU has free. The engine's first
        target that this machine can run is taken, CUDA before CPU; `device`, cpu or cuda, asks for one kind. With
        `serial` a GPU's kernels are launched one by one, slowly, and a fault names its kernel. Without `prefix_cache`
        no request finds what an earlier one computed. Raises EngineError subclasses, InvalidParameter.
        """
        options = LoadOptions(max_batch, max_seq_len, max_tokens, max_rows, threads, kv_memory, serial, prefix_cache)
        folder = Path(path)
        while True:
            before = identity(folder)
            try:
                return cls._load(folder, options, machine, device)
            except EngineError:
                # A build may have put another engine there between two files: no damage, a reason to begin anew.
                if identity(folder) == before:
                    raise

    @classmethod
    def _load(cls, folder: Path, options: LoadOptions, machine: Machine | None, device: str | None) -> "Engine":
        tokenizers: list[Tokenizer] = []
        devices: list[Device] = []

        def while_hashing(artifact: Artifact) -> None:
            devices.append(open_device(artifact, options))
            if artifact.has(TOKENIZER):
                tokenizers.append(Tokenizer.load(artifact))

        artifact: Artifact | None = None
        try:
            artifact = open_artifact(folder, machine, while_hashing, device)
            tokenizer = tokenizers[0] if tokenizers else None
            return cls(artifact, devices[0], devices[0].limits.max_seqs, tokenizer, prefix_cache=options.prefix_cache)
        except BaseException:
            for opened in devices:
                opened.close()
            if artifact is not None:
                artifact.close()
            raise

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: str = "",
        **fields: Any,
    ) -> list[Completion]:
        """Answer all prompts, batched; one completion per prompt, in order.

        `params` is one for all or one per prompt; keyword arguments are fields of SamplingParams over the
        model's defaults, `salt` is that of `submit`. A request that fails while it runs has its `error` set; the
        others are not affected.
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
        ids = [self._checked_prompt(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        handles = [self.submit(prompt, one, salt=salt) for prompt, one in zip(ids, each, strict=True)]
        try:
            return [handle.result() for handle in handles]
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
        **fields: Any,
    ) -> RequestHandle:
        """Queue one request. Iterate the handle for its outputs as they come, or let `step` call `on_output`.

        Keys and values of a prefix that an earlier request of the same `salt` computed are not computed again.

        Raises RequestError. An exception that `on_output` raises ends that request alone.
        """
        params = self.sampling(params, **fields)
        ids = self._checked_prompt(prompt, params)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        eos = frozenset() if params.ignore_eos else frozenset(self.manifest.tokens.eos)
        stop_ids = eos | frozenset(params.stop_token_ids)
        room = self._scheduler.max_len - len(ids)
        max_output = room if params.max_tokens is None else min(room, params.max_tokens)
        history, rows = TokenHistory(ids), RowSampling(params, seed, len(ids), stop_ids)
        prefix = PrefixChain(history, root_of(self._cache_identity, "", checked_salt(salt)))
        answer = Answer(params, self.tokenizer, stop_ids, max_output, ids)
        with self._change():
            request = Request(self._arrivals, history, len(ids), rows, prefix)
            self._arrivals += 1
            self._scheduler.add(request)
            live = Live(request, answer, params, seed, on_output)
            self._live[request] = live
        return RequestHandle(live, self.step, lambda: self._cancel(request))

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
        batch = self._scheduler.schedule()
        if not batch.chunks:
            return False
        sampled = [self._live[chunk.request] for chunk in lay_out(batch, self._buffers)]
        if copies := self._blocks.take_copies():
            self.device.copy_blocks(copies)
        (self.device.decode if batch.decode_only else self.device.prefill)(self._buffers)
        self._scheduler.computed(batch)
        self._commit.tokens(self._buffers, sampled)
        self._forget(sampled)
        return True

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams:
        """Sampling parameters from keyword arguments, over `params` or else over the model's own defaults."""
        known = SamplingParams.__dataclass_fields__
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise InvalidParameter(f"unknown sampling parameter {unknown[0]!r}; known: {', '.join(known)}")
        if isinstance(params, SamplingParams):
            return replace(params, **fields) if fields else params
        if params is not None:
            raise InvalidParameter(f"params must be SamplingParams, got {type(params).__name__}")
        return SamplingParams(**{**model_defaults(self.manifest.generation, fields.get("max_tokens")), **fields})

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, BOS before it if the model wants one."""
        return self._need_tokenizer().encode(text)

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Ids of a conversation by the model's chat template, ready for the answer.

        Raises ChatTemplateError.
        """
        return self.chat_template.encode(messages, **variables)

    def fit_chat(self, messages: Sequence[Message], max_tokens: int | None = None, **variables: Any) -> FittedChat:
        """As `encode_chat`, without the oldest turns where they leave no room for an answer.

        Room is for `max_tokens`, but of no more than a quarter of the context. Raises ChatTemplateError.
        """
        context = self._scheduler.max_len
        answer = max(1, min(max_tokens or context, context // 4))
        return self.chat_template.fit(messages, context - answer, **variables)

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ChatTemplateError if the model has none."""
        if self._template is None:
            tokenizer = self._need_tokenizer()
            if self._template_source is None:
                raise ChatTemplateError(
                    f"{self.artifact.folder}: the model has no chat template; use --raw to continue plain text"
                )
            tool_use = ChatTemplate.tool_use_source(tokenizer)
            self._template = ChatTemplate(self._template_source, tokenizer, tool_use)
        return self._template

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
        self._check_ids(token_ids)
        with self._turn():
            return self._scorer.logits(token_ids, rows, chunks)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log-probability [n-1] of each token but the first, given those before it. Raises RequestError."""
        self._check_ids(token_ids)
        with self._turn():
            return self._scorer.score(token_ids)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks of all groups that no request holds or was promised."""
        return self._blocks.num_free

    def check_integrity(self) -> None:
        """Raises AssertionError unless queues and blocks agree; for tests and for idle moments."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """End every request as cancelled, stop the threads, unmap the weights.

        Closing again changes nothing. RequestError while another thread drives the engine, and in a signal handler.
        """
        with self._change():
            for live in list(self._live.values()):
                self._end(live)
            self.device.close()
            self.artifact.close()

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
        self._commit.end(live, FinishReason.CANCELLED)
        self._forget([live])

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
        self._scheduler.begin_anew([live.request for live in lives])
        for live in lives:
            # A callback that is told of the failure may interrupt again: the others are failed all the same, and
            # `error` is what the caller sees.
            with contextlib.suppress(BaseException):
                self._commit.fail(live, cause)
        self._forget(lives)
        self._torn = any(live.completion is None for live in lives)

    def _forget(self, lives: Sequence[Live]) -> None:
        for live in lives:
            if live.completion is not None:
                self._live.pop(live.request, None)

    def _checked_prompt(self, prompt: Prompt, params: SamplingParams) -> Sequence[int]:
        params.check_vocabulary(self.manifest.model.num_valid_tokens)
        if params.stop and self.tokenizer is None:
            raise InvalidParameter("stop strings need a tokenizer, which this engine lacks")
        ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        self._check_ids(ids)
        self._scheduler.check_possible(len(ids))
        return ids

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not isinstance(ids, Sequence | np.ndarray) or isinstance(ids, bytes | bytearray):
            raise InvalidParameter(f"a prompt is text or a list of token ids, got {type(ids).__name__}")
        if len(ids) == 0:
            raise InvalidParameter("the prompt is empty")
        vocab = self.manifest.model.vocab_size
        for at, token in enumerate(ids):
            if not isinstance(token, int | np.integer) or isinstance(token, bool) or not 0 <= token < vocab:
                raise InvalidParameter(f"token {at} of the prompt: {token!r} is not an id in 0..{vocab - 1}")

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidParameter(f"{self.artifact.folder}: the engine has no tokenizer; give token ids")
        return self.tokenizer
