"""What an engine knows of text: its tokenizer, its chat template, and how it samples where nobody says."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmc.runtime.artifact.artifact import TOKENIZER, EngineFiles
from llmc.runtime.errors import ChatTemplateError, InvalidParameter
from llmc.runtime.step.params import SamplingParams, model_defaults
from llmc.runtime.text.chat import ChatTemplate, FittedChat, Message
from llmc.runtime.text.tokenizer import Tokenizer


@dataclass
class ModelText:
    """Of an engine's folder. All of it is read by `load`, because another engine may lie at the path later; the
    template is compiled when it is first needed."""

    files: EngineFiles
    tokenizer: Tokenizer | None
    _source: str | None
    _template: ChatTemplate | None = field(default=None, init=False)

    @classmethod
    def load(cls, files: EngineFiles) -> "ModelText":
        """Raises EngineError subclasses."""
        return cls.of(files, Tokenizer.load(files) if files.has(TOKENIZER) else None)

    @classmethod
    def of(cls, files: EngineFiles, tokenizer: Tokenizer | None) -> "ModelText":
        return cls(files, tokenizer, ChatTemplate.source(files, tokenizer) if tokenizer else None)

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
        defaults = model_defaults(self.files.manifest.generation, fields.get("max_tokens"))
        return SamplingParams(**{**defaults, **fields})

    def encode(self, text: str) -> list[int]:
        return self._need_tokenizer().encode(text)

    def fit_chat(
        self, messages: Sequence[Message], max_tokens: int | None, context: int, variables: dict[str, Any]
    ) -> FittedChat:
        """The newest turns that leave room, in a `context` of so many tokens, for an answer of `max_tokens`, but of no
        more than a quarter of it."""
        answer = max(1, min(max_tokens or context, context // 4))
        return self.chat_template.fit(messages, context - answer, **variables)

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ChatTemplateError if the model has none."""
        if self._template is None:
            tokenizer = self._need_tokenizer()
            if self._source is None:
                raise ChatTemplateError(
                    f"{self.files.folder}: the model has no chat template; use --raw to continue plain text"
                )
            self._template = ChatTemplate(self._source, tokenizer, ChatTemplate.tool_use_source(tokenizer))
        return self._template

    def check(self, params: SamplingParams) -> None:
        """Raises InvalidParameter if the parameters ask for text where there is none."""
        if params.stop and self.tokenizer is None:
            raise InvalidParameter("stop strings need a tokenizer, which this engine lacks")

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidParameter(f"{self.files.folder}: the engine has no tokenizer; give token ids")
        return self.tokenizer
