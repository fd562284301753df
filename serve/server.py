"""The state of a server: its engines by name, whether it takes requests, and which are under way."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmc.runtime.errors import ChatTemplateError, RuntimeFailure
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.process.protocol import AnswerStream, ServedEngine, ServedProcess, State
from llmc.runtime.text.chat import Message
from llmc.serve.chat.style import ChatStyle
from llmc.serve.http.cors import Cors
from llmc.serve.http.keys import ApiKeys
from llmc.serve.log import EventLog
from llmc.serve.metrics import Metrics, ModelMetrics
from llmc.serve.protocol.delta import ChatParser, PlainParser, Tool
from llmc.serve.protocol.errors import ApiError, bad, from_failure
from llmc.serve.protocol.token_texts import TokenTexts

if TYPE_CHECKING:
    from llmc.serve.telemetry import Spans

INLINE_CHARS = 2000  # texts up to this are tokenised at once: a thread costs more


@dataclass
class Model:
    """One engine under the name that clients ask for. Without `split_reasoning`, reasoning stays in the content."""

    name: str
    engine: ServedEngine
    metrics: ModelMetrics
    split_reasoning: bool = True
    _texts: TokenTexts | None = None
    _style: ChatStyle | None = None

    @property
    def texts(self) -> TokenTexts:
        """Of the tokenizer that the engine has now: after a restart it may be another one."""
        if self._texts is None or self._texts.tokenizer is not self.engine.tokenizer:
            self._texts = TokenTexts(self.engine.tokenizer)
        return self._texts

    @property
    def style(self) -> ChatStyle | None:
        """How the engine's model writes calls and reasoning, None if it has no chats."""
        tokenizer = self.engine.tokenizer
        if tokenizer is not None and (self._style is None or self._style.tokenizer is not tokenizer):
            try:
                self._style = ChatStyle.learn(self.engine.chat_template, tokenizer, self.split_reasoning)
            except ChatTemplateError:
                return None
        return self._style

    @property
    def chat_facts(self) -> dict[str, Any] | None:
        """What was learned of the style, for people."""
        return None if self.style is None else {"takes_tools": self.style.takes_tools, **self.style.describe()}

    def parser(self, tools: Sequence[Tool], prompt_ids: Sequence[int]) -> ChatParser:
        """Of one answer to a chat."""
        return self.style.reader(tools, prompt_ids) if self.style is not None else PlainParser()

    async def encode(self, text: str) -> list[int]:
        """Raises ApiError."""
        try:
            if len(text) <= INLINE_CHARS:
                return self.engine.encode(text)
            return await asyncio.to_thread(self.engine.encode, text)
        except RuntimeFailure as error:
            raise from_failure(error, {}) from error

    async def encode_chat(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> list[int]:
        """In a thread: how long a template takes is not known. Raises ApiError."""
        if "tools" in variables and self.style is not None and not self.style.takes_tools:
            raise bad("tools: the model's chat template tells it of no tools", "tools", "unsupported_field")
        try:
            ready = self.style.messages(messages) if self.style is not None else messages
            return await asyncio.to_thread(self.engine.encode_chat, ready, **variables)
        except RuntimeFailure as error:
            raise from_failure(error) from error

    async def score(self, ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Raises ApiError."""
        try:
            return await self.engine.score(ids, top)
        except RuntimeFailure as error:
            raise from_failure(error) from error


class Server:
    """What routes share. It takes requests from `begin` to `stop_taking`."""

    def __init__(self, keys: ApiKeys, cors: Cors, log: EventLog, split_reasoning: bool = True) -> None:
        self.keys = keys
        self.cors = cors
        self.log = log
        self.metrics = Metrics()
        self.models: dict[str, Model] = {}
        self.running: set[AnswerStream | asyncio.Task[list[TokenLogprobs]]] = set()
        self.spans: Spans | None = None
        self._split_reasoning = split_reasoning
        self._process: ServedProcess | None = None
        self._draining = False

    def begin(self, process: ServedProcess) -> None:
        """Its engines are there and have shown that they work."""
        self._process = process
        self.metrics.serve(process.engines)
        for name, engine in process.engines.items():
            self.models[name] = Model(name, engine, self.metrics.of(name), self._split_reasoning)

    def stop_taking(self) -> None:
        self._draining = True

    def cut_off(self) -> None:
        """End what is under way; its clients hear of it."""
        for one in list(self.running):
            one.cancel()

    @property
    def is_alive(self) -> bool:
        """False from the engines' death until others have taken their place."""
        process = self._process
        return process is None or (process.state is not State.DEAD and not process.died.is_set())

    @property
    def not_ready(self) -> ApiError | None:
        """Why requests are not taken now, None if they are."""
        if self._draining:
            return ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)
        if self._process is None or self._process.state is State.STARTING:
            return ApiError(503, "the server is starting", code="starting", retry_after=1)
        if self._process.state is not State.READY:
            cause = self._process.cause or self._process.state.value
            return ApiError(503, f"the engine is not there: {cause}", code="engine_gone", retry_after=2)
        return None

    def model(self, name: str) -> Model:
        """By its name; the first one where no name was sent. Raises ApiError (404)."""
        found = self.models.get(name) if name else next(iter(self.models.values()))
        if found is None:
            known = ", ".join(self.models)
            raise ApiError(404, f"there is no model {name!r}; there is {known}", "model", "model_not_found")
        return found
