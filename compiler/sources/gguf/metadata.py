"""GGUF metadata that transformers does not translate: shown to agree with the config, or refused by name.

transformers maps about ten keys per architecture and drops the rest without a word; a dropped rope scaling or
softcap is another model. Key names: the GGUF specification's "Standardized key-value pairs".
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from transformers import PretrainedConfig
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD

# They fix tensor shapes, and every shape is compared with the module's.
_SHOWN_BY_SHAPES = frozenset(
    {
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
    }
)

# The training length: the engine has its own envelope.
_WITHOUT_EFFECT = frozenset({"context_length"})


def _rope(config: PretrainedConfig) -> dict[str, Any]:
    """The parameters of the full-attention rope: those that GGUF's rope keys speak of."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = parameters.get("full_attention")
    return nested if isinstance(nested, dict) else parameters


def _head_dim(config: PretrainedConfig) -> Any:
    stated = getattr(config, "head_dim", None)
    return stated if stated is not None else config.hidden_size // config.num_attention_heads


def _rotary_dim(config: PretrainedConfig) -> Any:
    fraction = _rope(config).get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    return int(_head_dim(config) * (1.0 if fraction is None else fraction))


def _rope_type(config: PretrainedConfig) -> str:
    stated = _rope(config).get("rope_type", "default")
    return "none" if stated == "default" else str(stated)


# Metadata key, without the architecture prefix -> what the config says about the same thing.
_MEANING: Mapping[str, Callable[[PretrainedConfig], Any]] = {
    "vocab_size": lambda c: c.vocab_size,
    "attention.causal": lambda c: True,
    "attention.key_length": _head_dim,
    "attention.value_length": _head_dim,
    "attention.layer_norm_epsilon": lambda c: getattr(c, "layer_norm_eps", getattr(c, "layer_norm_epsilon", None)),
    "attention.layer_norm_rms_epsilon": lambda c: getattr(c, "rms_norm_eps", None),
    "attention.sliding_window": lambda c: getattr(c, "sliding_window", None),
    "attn_logit_softcapping": lambda c: getattr(c, "attn_logit_softcapping", None),
    "final_logit_softcapping": lambda c: getattr(c, "final_logit_softcapping", None),
    "rope.dimension_count": _rotary_dim,
    "rope.freq_base": lambda c: _rope(c).get("rope_theta"),
    "rope.scaling.type": _rope_type,
    "rope.scaling.factor": lambda c: _rope(c).get("factor"),
    "rope.scaling.original_context_length": lambda c: _rope(c).get("original_max_position_embeddings"),
    "use_parallel_residual": lambda c: getattr(c, "use_parallel_residual", None),
}


def check_metadata(metadata: Mapping[str, Any], architecture: str, config: PretrainedConfig, path: Path) -> None:
    """Raise SourceError for the first key of the architecture that acts and is not honoured by the config."""
    mapped: dict[str, Any] = {}
    for known in (architecture, config.model_type):
        mapped |= cast(dict[str, Any], GGUF_CONFIG_MAPPING.get(known, {}))
    prefix = architecture + "."
    for key, value in metadata.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or name in _SHOWN_BY_SHAPES or name in _WITHOUT_EFFECT:
            continue
        if mapped.get(name) is not None:
            continue
        if (meaning := _MEANING.get(name)) is None:
            raise SourceError(f"{path}: metadata {key} = {value!r} is read by neither transformers nor llmc; {INSTEAD}")
        expected = meaning(config)
        if not _agree(value, expected):
            raise SourceError(
                f"{path}: metadata {key} = {value!r} is not honoured by transformers, whose config says {expected!r}; "
                + INSTEAD
            )


def _agree(value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=1e-6)  # GGUF floats are float32
    return bool(value == expected)
