"""How a model wants to be sampled: generation_config.json, honoured or refused key by key."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object

_LARGEST = sys.float_info.max

_HONOURED = frozenset(
    {
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "max_new_tokens",
        "min_new_tokens",
        "stop_strings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
)

# Keys that choose how transformers runs or what it returns; no token depends on them.
_WITHOUT_EFFECT = frozenset(
    {
        "_from_model_config",
        "cache_config",
        "cache_implementation",
        "compile_config",
        "continuous_batching_config",
        "decoder_start_token_id",  # of models with an encoder
        "disable_compile",
        "low_memory",
        "max_cache_len",
        "max_length",  # total length: the engine's own envelope bounds it
        "max_time",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "prefill_chunk_size",
        "remove_invalid_values",  # the runtime ends a request whose logits are not finite
        "renormalize_logits",  # neither the largest logit nor the distribution changes
        "return_dict_in_generate",
        "transformers_version",
        "use_cache",
    }
)

# Speculation: what is drafted is checked against the model's own choice, so no token depends on it.
_SPECULATION = frozenset(
    {
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_ensemble_weight",
        "assistant_lookbehind",
        "is_assistant",
        "max_matching_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "prompt_lookup_num_tokens",
        "speculation_type",
        "target_lookbehind",
        "use_mtp",
    }
)

# They speak of beams; without beams nobody reads them.
_OF_BEAMS = frozenset({"diversity_penalty", "early_stopping", "length_penalty", "num_beam_groups"})

# Neutral values of keys that transformers has no default for.
_NEUTRAL: dict[str, object] = {"guidance_scale": 1.0}


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults and special tokens a model states. A default nobody states is off."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    bos: int | None = None
    eos: tuple[int, ...] = ()
    """Every id that ends a text: those of config.json and of generation_config.json together, ascending."""
    pad: int | None = None
    unread: tuple[str, ...] = ()
    """Keys that say something, and that neither transformers nor the runtime knows."""


def read_generation(folder: Path, config: PretrainedConfig, raw_config: Mapping[str, Any]) -> GenerationDefaults:
    """The folder's generation_config.json, or, as transformers does without one, config.json's own keys."""
    path = folder / "generation_config.json"
    said = [scope for scope in (raw_config.get("text_config"), raw_config) if isinstance(scope, Mapping)]
    if path.is_file():
        return generation_defaults(read_json_object(path), config, path, said)
    own = {key: value for key, value in raw_config.items() if key in vars(_library())}
    return generation_defaults(own, config, folder / "config.json", said)


def _library() -> GenerationConfig:
    return GenerationConfig()  # type: ignore[no-untyped-call]


def generation_defaults(
    stated: Mapping[str, Any],
    config: PretrainedConfig,
    where: Path,
    config_says: Sequence[Mapping[str, Any]] | None = None,
) -> GenerationDefaults:
    """Typed defaults from a generation config's keys; SourceError for one that acts and is not supported.

    `config_says`: config.json's own objects, where the config object may hold ids that its class has for models that
    say nothing.
    """
    unread = _check_keys(stated, where)
    said = [stated, *([vars(config.get_text_config())] if config_says is None else config_says)]
    do_sample = stated.get("do_sample") or False
    if not isinstance(do_sample, bool):
        raise SourceError(f"{where}: do_sample = {do_sample!r} is neither true nor false")
    limit = stated.get("max_new_tokens")
    return GenerationDefaults(
        do_sample=do_sample,
        temperature=_number(stated, "temperature", 1.0, 0.0, None, where),
        top_k=_integer(stated, "top_k", 0, 0, where),
        top_p=_number(stated, "top_p", 1.0, 0.0, 1.0, where),
        min_p=_number(stated, "min_p", 0.0, 0.0, 1.0, where),
        repetition_penalty=_number(stated, "repetition_penalty", 1.0, 1e-6, None, where),
        presence_penalty=_number(stated, "presence_penalty", 0.0, -_LARGEST, None, where),
        frequency_penalty=_number(stated, "frequency_penalty", 0.0, -_LARGEST, None, where),
        max_new_tokens=None if limit is None else _integer(stated, "max_new_tokens", 1, 1, where),
        min_new_tokens=_integer(stated, "min_new_tokens", 0, 0, where),
        stop_strings=_strings(stated.get("stop_strings"), where),
        bos=next(iter(_said_ids(said, "bos_token_id", where)), None),
        eos=tuple(sorted(set(_said_ids(said, "eos_token_id", where)))),
        pad=next(iter(_said_ids(said, "pad_token_id", where)), None),
        unread=unread,
    )


def _check_keys(stated: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """Keys that nobody knows; SourceError for one that transformers acts on and the runtime cannot."""
    known, defaults = vars(_library()), GenerationConfig._get_default_generation_params()
    unread: list[str] = []
    for key, value in stated.items():
        says_nothing = value is None or value is False or value in ([], {})
        if key in _HONOURED or key in _WITHOUT_EFFECT or key in _SPECULATION or says_nothing:
            continue
        if value == defaults.get(key, _NEUTRAL.get(key)) or (key in _OF_BEAMS and stated.get("num_beams") in (None, 1)):
            continue
        if key in known:
            raise SourceError(f"{where}: generation setting {key} = {value!r} is not supported")
        unread.append(key)
    return tuple(sorted(unread))


def _ids(value: object, where: Path) -> tuple[int, ...]:
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    ids: list[int] = []
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int):
            raise SourceError(f"{where}: token id {item!r} is not an integer")
        ids.append(item)
    return tuple(token for token in ids if token >= 0)  # -1: some configs' way to say none


def _said_ids(said: Sequence[Mapping[str, Any]], key: str, where: Path) -> tuple[int, ...]:
    """All ids under a key, those of the first to speak first."""
    return tuple(token for scope in said for token in _ids(scope.get(key), where))


def _strings(value: object, where: Path) -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise SourceError(f"{where}: stop_strings = {value!r} is neither a text nor a list of texts")
    return tuple(texts)


def _number(stated: Mapping[str, Any], key: str, default: float, low: float, high: float | None, where: Path) -> float:
    value = stated.get(key)
    if value is None:
        return default
    largest = _LARGEST if high is None else high
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= largest:
        raise SourceError(f"{where}: {key} = {value!r} is out of range")
    return float(value)


def _integer(stated: Mapping[str, Any], key: str, default: int, low: int, where: Path) -> int:
    value = _number(stated, key, float(default), low, None, where)
    if not value.is_integer():
        raise SourceError(f"{where}: {key} = {value!r} is not an integer")
    return int(value)
