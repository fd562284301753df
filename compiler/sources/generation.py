"""How a model wants to be sampled: generation_config.json, honoured or refused key by key."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object

_HONOURED = frozenset(
    {
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "max_new_tokens",
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
        "chat_format",
        "compile_config",
        "continuous_batching_config",
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
        "return_dict_in_generate",
        "transformers_version",
        "use_cache",
    }
)

# Values under which a key that is not honoured does nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "length_penalty": (1.0,),  # beams only
    "early_stopping": (False, True),  # beams only
    "diversity_penalty": (0.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1.0,),
    "num_assistant_tokens": tuple(range(1, 65)),  # speculation only
}


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults and special tokens a model states. A default nobody states is off."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    """Every id that ends a text: those of config.json and of generation_config.json together, ascending."""
    pad: int | None = None


def read_generation(folder: Path, config: PretrainedConfig, raw_config: Mapping[str, Any]) -> GenerationDefaults:
    """The folder's generation_config.json, or, as transformers does without one, config.json's own keys."""
    path = folder / "generation_config.json"
    if path.is_file():
        return generation_defaults(read_json_object(path), config, path)
    known = vars(GenerationConfig())  # type: ignore[no-untyped-call]
    own = {key: value for key, value in raw_config.items() if key in known}
    return generation_defaults(own, config, folder / "config.json")


def generation_defaults(stated: dict[str, Any], config: PretrainedConfig, where: Path) -> GenerationDefaults:
    """Typed defaults from a generation config's keys; SourceError for one that acts and is not supported."""
    for key, value in stated.items():
        if key in _HONOURED or key in _WITHOUT_EFFECT or value in (None, [], {}):
            continue
        if value is False or value in _NEUTRAL.get(key, ()):
            continue
        raise SourceError(f"{where}: generation setting {key} = {value!r} is not supported")
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
        max_new_tokens=None if limit is None else _integer(stated, "max_new_tokens", 1, 1, where),
        bos=_first(_ids(stated.get("bos_token_id"), where) or _ids(_of(config, "bos_token_id"), where)),
        eos=tuple(sorted({*_ids(stated.get("eos_token_id"), where), *_ids(_of(config, "eos_token_id"), where)})),
        pad=_first(_ids(stated.get("pad_token_id"), where) or _ids(_of(config, "pad_token_id"), where)),
    )


def _of(config: PretrainedConfig, name: str) -> object:
    return getattr(config.get_text_config(), name, None)


def _ids(value: object, where: Path) -> tuple[int, ...]:
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    ids: list[int] = []
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int):
            raise SourceError(f"{where}: token id {item!r} is not an integer")
        ids.append(item)
    return tuple(token for token in ids if token >= 0)  # -1: some configs' way to say none


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _number(stated: dict[str, Any], key: str, default: float, low: float, high: float | None, where: Path) -> float:
    value = stated.get(key)
    if value is None:
        return default
    largest = sys.float_info.max if high is None else high
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= largest:
        raise SourceError(f"{where}: {key} = {value!r} is out of range")
    return float(value)


def _integer(stated: dict[str, Any], key: str, default: int, low: int, where: Path) -> int:
    value = _number(stated, key, float(default), low, None, where)
    if not value.is_integer():
        raise SourceError(f"{where}: {key} = {value!r} is not an integer")
    return int(value)
