"""What completions, chats and responses have in common: how tokens are chosen, how many answers, how soon."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.kv.prefix import MAX_SALT_CHARS
from llmc.runtime.step.params import MAX_BIASES, SamplingParams
from llmc.serve.protocol.errors import bad, from_failure
from llmc.serve.protocol.fields import Fields, brief

MAX_SAMPLES = 16
MAX_INT = 2**31 - 1
LATENCIES = ("interactive", "standard", "batch")
SERVICE_TIERS = {"auto": "standard", "default": "standard", "flex": "batch", "priority": "interactive"}
# Fields that go to SamplingParams as they are, under the same name.
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
)
PARAMETERS = {name: name for name in (*_SAMPLING, "prompt", "logit_bias", "max_tokens", "logprobs")}
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


class Samples(Protocol):
    """Of an engine, what turns a request's fields into SamplingParams: the model's own defaults."""

    def sampling(self, params: SamplingParams | None = None, **fields: Any) -> SamplingParams: ...


@dataclass(frozen=True)
class Generation:
    """`sampling` holds only what the request states. Priority: higher is served first, 0 is everybody's."""

    model: str
    sampling: Mapping[str, Any]
    n: int = 1
    best_of: int | None = None
    latency: str = "standard"
    priority: int = 0
    salt: str = ""
    stream: bool = False
    include_usage: bool = False
    ids_as_tokens: bool = False  # tokens of logprobs are "token_id:17"
    with_ids: bool = False  # the answer lists its token ids

    @property
    def num_samples(self) -> int:
        return self.best_of or self.n

    def params(self, engine: Samples) -> SamplingParams:
        """Over the model's own defaults. A model that states no temperature draws at 1, as OpenAI's do.

        Raises ApiError.
        """
        stated = dict(self.sampling)
        try:
            if "temperature" not in stated and engine.sampling().temperature == 0:
                stated["temperature"] = 1.0
            return engine.sampling(**stated)
        except RuntimeFailure as error:
            raise from_failure(error, PARAMETERS) from error


def read_generation(fields: Fields, *, max_tokens: int | None, logprobs: int | None) -> Generation:
    """Takes the common fields; raises ApiError. Length and log-probabilities are called otherwise on every route."""
    stated = {name: value for name in _SAMPLING if (value := fields.take(name)) is not None}
    if stated.get("top_k") == -1 and type(stated["top_k"]) is int:
        stated["top_k"] = 0  # vLLM's way of saying off
    for name, value in (("max_tokens", max_tokens), ("logprobs", logprobs), ("logit_bias", _biases(fields))):
        if value is not None:
            stated[name] = value
    n = fields.integer("n", 1, MAX_SAMPLES, 1) or 1
    best_of = fields.integer("best_of", 1, MAX_SAMPLES)
    if best_of is not None and best_of < n:
        raise fields.error("best_of", f"is {best_of}, less than n, which is {n}")
    stream = fields.boolean("stream")
    if stream and best_of is not None and best_of > n:
        raise fields.error("best_of", "cannot be streamed: which answers are best is known at their end")
    return Generation(
        model=read_model(fields),
        sampling=stated,
        n=n,
        best_of=best_of if best_of != n else None,
        latency=_latency(fields),
        priority=-(fields.integer("priority", -MAX_INT, MAX_INT, 0) or 0),  # lower is sooner, as in vLLM
        salt=fields.text("cache_salt", MAX_SALT_CHARS) or "",
        stream=stream,
        include_usage=_include_usage(fields, stream),
        ids_as_tokens=fields.boolean("return_tokens_as_token_ids"),
        with_ids=fields.boolean("return_token_ids"),
    )


def read_model(fields: Fields) -> str:
    """The name as it was sent; empty if it was not, which means the server's first model."""
    return fields.text("model", 256) or ""


def read_max_logprobs(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 0, MAX_LOGPROBS)


def check_token_ids(ids: Sequence[Any], where: str) -> list[int]:
    """A prompt in token ids. Whether the model has them is known to the engine."""
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise bad(f"{where} must hold token ids, got {brief(token)}", where, "invalid_type")
    return list(ids)


def _biases(fields: Fields) -> dict[int, Any] | None:
    given = fields.mapping("logit_bias")
    if given is None:
        return None
    if len(given) > MAX_BIASES:
        raise fields.error("logit_bias", f"has {len(given)} entries, at most {MAX_BIASES} are allowed")
    for key in given:
        if not _TOKEN_ID.fullmatch(key):
            raise fields.error("logit_bias", f"maps token ids to numbers, got the key {brief(key)}")
    return {int(key): bias for key, bias in given.items()}


def _latency(fields: Fields) -> str:
    """`latency` names the class; else OpenAI's service tiers stand for one."""
    latency = fields.choice("latency", LATENCIES)
    tier = fields.choice("service_tier", tuple(SERVICE_TIERS))
    return latency or SERVICE_TIERS[tier or "auto"]


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.error("stream_options", "goes with stream: true")
    inner = Fields(options, "stream_options.")
    wanted = inner.boolean("include_usage")
    inner.boolean("include_obfuscation")  # padding against eavesdroppers of lengths; TLS is in front of llmc
    if inner.boolean("continuous_usage_stats"):
        raise inner.error("continuous_usage_stats", "is not supported: usage comes once, at the end")
    inner.finish(tables=False)
    return wanted
