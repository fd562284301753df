"""Fields that clients send and that llmc does not act on: one rule for each, the same on every route.

A field that cannot change the answer is not read. A field that would change it is refused by its name, unless it asks
for what happens anyway. A field that is in neither table, and that the route does not know, is refused as unknown.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Neutral:
    """Why a field is refused, and the values that ask for nothing (null always does)."""

    why: str
    values: tuple[Any, ...] = ()


UNREAD: dict[str, str] = {
    "user": "whose request it is",
    "safety_identifier": "whose request it is",
    "metadata": "the caller's own notes",
    "store": "nothing is stored",
    "prompt_cache_key": "the prefix cache finds shared prefixes by itself; `cache_salt` keeps them apart",
    "prompt_cache_retention": "the prefix cache keeps what there is room for",
    "request_id": "ids are the server's own; X-Request-Id is given back",
    "session_id": "whose request it is",
}

_GRAMMAR = "answers cannot be bound to a grammar yet"
_TEXT = "models here read and write text"
_TEMPLATE = "the chat template is the model's own"
_SEARCH = "answers are drawn token by token"
_PIPELINE = "this is of vLLM's own machinery"

REFUSED: dict[str, Neutral] = {
    "response_format": Neutral(_GRAMMAR, ({"type": "text"},)),
    "structured_outputs": Neutral(_GRAMMAR),
    "guided_json": Neutral(_GRAMMAR),
    "guided_regex": Neutral(_GRAMMAR),
    "guided_choice": Neutral(_GRAMMAR),
    "guided_grammar": Neutral(_GRAMMAR),
    "functions": Neutral("it was replaced by `tools`", ([],)),
    "function_call": Neutral("it was replaced by `tool_choice`", ("none", "auto")),
    "modalities": Neutral(_TEXT, (["text"],)),
    "audio": Neutral(_TEXT),
    "mm_processor_kwargs": Neutral(_TEXT, ({},)),
    "media_io_kwargs": Neutral(_TEXT, ({},)),
    "prompt_embeds": Neutral(_TEXT),
    "prediction": Neutral("there is no speculation on given texts"),
    "web_search_options": Neutral("nothing here searches the web"),
    "verbosity": Neutral("no model here has such a setting", ("medium",)),
    "suffix": Neutral("models here continue a text, they do not fill gaps", ("",)),
    "use_beam_search": Neutral(_SEARCH, (False,)),
    "length_penalty": Neutral(_SEARCH, (1, 1.0)),
    "early_stopping": Neutral(_SEARCH, (False,)),
    "chat_template": Neutral(_TEMPLATE),
    "continue_final_message": Neutral(_TEMPLATE, (False,)),
    "add_special_tokens": Neutral("a text gets the BOS that its model wants, a chat what its template writes"),
    "skip_special_tokens": Neutral("control tokens are never part of the text", (True,)),
    "spaces_between_special_tokens": Neutral("control tokens are never part of the text", (True,)),
    "include_stop_str_in_output": Neutral("the text ends before its stop", (False,)),
    "truncate_prompt_tokens": Neutral("prompts are not cut", (-1,)),
    "truncation_side": Neutral("prompts are not cut", ("left", "right")),
    "allowed_token_ids": Neutral(_GRAMMAR),
    "bad_words": Neutral(_GRAMMAR, ([],)),
    "logprob_token_ids": Neutral("log-probabilities are those of the best tokens"),
    "thinking_token_budget": Neutral("reasoning is not bounded apart from the answer", (-1,)),
    "repetition_detection": Neutral("answers end by stops and lengths"),
    "watermarking": Neutral("answers are not marked", (False,)),
    "logits_processors": Neutral("no code comes in by requests", ([],)),
    "vllm_xargs": Neutral(_PIPELINE, ({},)),
    "kv_transfer_params": Neutral(_PIPELINE),
    "ec_transfer_params": Neutral(_PIPELINE),
    "stream_interval": Neutral("every output is a chunk", (1,)),
    "echo": Neutral("a chat is rendered by its template; /v1/completions echoes a text", (False,)),
    "prompt_logprobs": Neutral("a stream has those of the answer; ask without stream for the prompt's"),
    "moderation": Neutral("nothing here moderates"),
}
