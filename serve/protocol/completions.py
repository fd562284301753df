"""A request to /v1/completions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmc.serve.protocol.errors import ApiError, bad
from llmc.serve.protocol.fields import Fields
from llmc.serve.protocol.generation import (
    MAX_INT,
    Generation,
    check_token_ids,
    read_generation,
    read_max_logprobs,
)

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16  # OpenAI's

Prompt = str | list[int]


@dataclass(frozen=True)
class CompletionRequest:
    """`score_only`: nothing is generated, the prompt's log-probabilities are the answer (max_tokens 0 with echo)."""

    generation: Generation
    prompts: list[Prompt]
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    score_only: bool = False


def read_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Everything that can be checked without the model is. Raises ApiError."""
    fields = Fields(body)
    prompts = _prompts(fields.take("prompt"))
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, MAX_INT, DEFAULT_MAX_TOKENS)
    logprobs = read_max_logprobs(fields, "logprobs")
    generation = read_generation(fields, max_tokens=max_tokens or 1, logprobs=logprobs)
    if len(prompts) * generation.num_samples > MAX_PROMPTS:
        raise bad(f"{len(prompts)} prompts of {generation.num_samples} answers are more than {MAX_PROMPTS}", "prompt")
    request = CompletionRequest(
        generation=generation,
        prompts=prompts,
        echo=echo,
        logprobs=logprobs,
        prompt_logprobs=None if generation.stream else read_max_logprobs(fields, "prompt_logprobs"),
        score_only=max_tokens == 0,
    )
    if generation.stream and echo and (logprobs is not None or max_tokens == 0):
        raise fields.error("echo", "of log-probabilities, or of the prompt alone, is not streamed")
    fields.finish()
    return request


def _prompts(given: Any) -> list[Prompt]:
    """One text, one list of ids, or a list of either."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise _no_prompt()
    if not isinstance(given[0], str | list):
        return [_ids(given, "prompt")]
    if len(given) > MAX_PROMPTS:
        raise bad(f"prompt has {len(given)} items, at most {MAX_PROMPTS} are allowed", "prompt")
    return [item if isinstance(item, str) else _ids(item, f"prompt[{at}]") for at, item in enumerate(given)]


def _ids(given: Any, where: str) -> list[int]:
    if not isinstance(given, list) or not given:
        raise _no_prompt()
    return check_token_ids(given, where)


def _no_prompt() -> ApiError:
    return bad("prompt must be a string, an array of token ids, or an array of those", "prompt", "invalid_type")
