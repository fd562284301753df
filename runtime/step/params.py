"""How a request wants its tokens chosen, validated before anything is tokenised or queued."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from llmc.runtime.artifact.bounds import plain
from llmc.runtime.artifact.manifest import MAX_LOGPROBS, GenerationDefaults
from llmc.runtime.errors import InvalidParameter

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 1024
MAX_BIASES = 1024
MAX_BIAS = 100.0
# The device computes in 32-bit floats: within these bounds no quotient of a logit leaves their range.
_MIN_FLOAT = 1e-6
_MAX_FLOAT = 1e6
_MAX_INT = 2**31 - 1
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """One request's choices. Raises InvalidParameter, naming the field, its value and its range.

    Order of operations, on the device: repetition, presence and frequency penalties, `logit_bias`, then
    temperature, top-k, top-p, min-p, one draw. `temperature` 0 is greedy. Log-probabilities are those of the
    raw logits.
    """

    temperature: float = 1.0  # 0 = greedy, else 1e-6..1e6
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1e-6..1; 1 = off
    min_p: float = 0.0  # [0, 1]; 0 = off
    repetition_penalty: float = 1.0  # 1e-6..1e6; 1 = off; over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit, -100..100
    seed: int | None = None  # None: a random one, reported in the result
    max_tokens: int | None = None  # None: as many as the envelope holds
    min_tokens: int = 0  # no stop before this many
    stop: tuple[str, ...] = ()  # the text ends before the first of these to be complete
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end tokens
    ignore_eos: bool = False  # the model's own end tokens do not stop
    logprobs: int | None = None  # None: none; k: the chosen token's and the k best

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in (
            "temperature",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "top_p",
            "min_p",
        ):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if self.temperature != 0:
            _range("temperature, unless 0,", self.temperature, _MIN_FLOAT, _MAX_FLOAT)
        _range("top_p", self.top_p, _MIN_FLOAT, 1)
        _range("min_p", self.min_p, 0, 1)
        _range("repetition_penalty", self.repetition_penalty, _MIN_FLOAT, _MAX_FLOAT)
        _range("presence_penalty", self.presence_penalty, -_MAX_FLOAT, _MAX_FLOAT)
        _range("frequency_penalty", self.frequency_penalty, -_MAX_FLOAT, _MAX_FLOAT)
        _integer("top_k", self.top_k, 0, _MAX_INT)
        _integer("min_tokens", self.min_tokens, 0, _MAX_INT)
        if self.seed is not None:
            _integer("seed", self.seed, 0, _MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, _MAX_INT)
            if self.min_tokens > self.max_tokens:
                raise InvalidParameter(f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameter(f"ignore_eos must be true or false, got {self.ignore_eos!r}")
        self._check_stops()
        self._check_biases()

    def _check_stops(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop)
        object.__setattr__(self, "stop", stops)
        if len(stops) > MAX_STOPS:
            raise InvalidParameter(f"stop has {len(stops)} strings, at most {MAX_STOPS} are allowed")
        for text in stops:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
                raise InvalidParameter(f"each stop must be a string of 1 to {MAX_STOP_CHARS} characters")
        ids = _items("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        if len(ids) > MAX_STOP_IDS:
            raise InvalidParameter(f"stop_token_ids has {len(ids)} ids, at most {MAX_STOP_IDS} are allowed")
        for token in ids:
            _integer("stop_token_ids", token, 0, _MAX_INT)

    def _check_biases(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidParameter(f"logit_bias must map token ids to numbers, got {type(self.logit_bias).__name__}")
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidParameter(f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_BIASES} are allowed")
        biases: dict[int, float] = {}
        for token, bias in self.logit_bias.items():
            token = plain(token)
            _integer("logit_bias token id", token, 0, _MAX_INT)
            biases[token] = _number(f"logit_bias[{token}]", plain(bias))
            _range(f"logit_bias[{token}]", biases[token], -MAX_BIAS, MAX_BIAS)
        object.__setattr__(self, "logit_bias", MappingProxyType(biases))

    @property
    def penalises(self) -> bool:
        """Whether what can be chosen depends on what was."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_vocabulary(self, num_valid_tokens: int) -> None:
        """Raises InvalidParameter for an id that the model's vocabulary lacks."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if token >= num_valid_tokens:
                    raise InvalidParameter(f"{name}: token id {token} is not below {num_valid_tokens}")


def model_defaults(generation: GenerationDefaults, max_tokens: object = None) -> dict[str, Any]:
    """The model's own settings as keyword arguments of SamplingParams.

    As in transformers, a model whose generation config does not say `do_sample` is greedy, and its sampling
    fields then wait for a caller who asks for a temperature. Who asks for at most `max_tokens` is not bound by the
    model's own least number of them.
    """
    stated = {
        "temperature": generation.temperature,
        "top_k": generation.top_k,
        "top_p": generation.top_p,
        "min_p": generation.min_p,
        "repetition_penalty": generation.repetition_penalty,
        "presence_penalty": generation.presence_penalty,
        "frequency_penalty": generation.frequency_penalty,
        "max_tokens": generation.max_new_tokens,
        "min_tokens": generation.min_new_tokens,
        "stop": generation.stop_strings or None,
    }
    defaults: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    if not generation.do_sample:
        defaults["temperature"] = 0.0
    most = plain(max_tokens)
    if isinstance(most, int) and "min_tokens" in defaults:
        defaults["min_tokens"] = min(defaults["min_tokens"], most)
    return defaults


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidParameter(f"{name} must be a number, got {_brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidParameter(f"{name} must be a finite number, got {_brief(value)}")
    return number


def _items(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Sequence | Set | np.ndarray) or isinstance(value, str | bytes | bytearray):
        raise InvalidParameter(f"{name} must be a list, got {_brief(value)}")
    return tuple(plain(item) for item in value)


def _range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidParameter(f"{name} must be in [{low:g}, {high:g}], got {value:g}")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(f"{name} must be an integer, got {_brief(value)}")
    if not low <= value <= high:
        raise InvalidParameter(f"{name} must be in {low}..{high}, got {_brief(value)}")


def _brief(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
