"""Facts about a model that a GGUF's metadata lacks: stored as a tensor, or known to llama.cpp by the model's size."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.tensor import GgufTensor

_ROPE_FREQS = "rope_freqs.weight"
_LONGROPE = ("rope_factors_long.weight", "rope_factors_short.weight")
_ROPE_TYPE = "frequency_factors"

# architecture -> layers of its 27B, whose queries are scaled by the width of a head's share of the hidden state
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def add_unstated(config: PretrainedConfig, architecture: str, tensors: Sequence[GgufTensor]) -> list[GgufTensor]:
    """Write into the config what it cannot know from the metadata; the tensors that are weights. Raises SourceError."""
    if hasattr(config, "query_pre_attn_scalar"):
        largest = config.num_hidden_layers == _LAYERS_OF_27B.get(architecture)
        per_head = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = per_head if largest else config.head_dim
    weights: list[GgufTensor] = []
    for tensor in tensors:
        if tensor.name in _LONGROPE:
            raise SourceError(
                f"{tensor.file}: tensor {tensor.name}: rope frequencies that change with the text's length (LongRoPE) "
                "are not supported yet; take a GGUF of the model with the short context"
            )
        if tensor.name == _ROPE_FREQS:
            _add_rope_factors(config, tensor)
        else:
            weights.append(tensor)
    return weights


def _add_rope_factors(config: PretrainedConfig, tensor: GgufTensor) -> None:
    """What Llama 3.1 calls rope_scaling: llama.cpp divides frequency i by factor i, as its converter computed it."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise SourceError(
            f"{tensor.file}: tensor {tensor.name}: a {config.model_type} whose rope is {parameters} has no place for "
            f"it; {INSTEAD}"
        )
    factors = tensor.dequantise().reshape(-1).tolist()
    expected = _rotary_dim(config) // 2
    if len(factors) != expected or not all(factor > 0 for factor in factors):
        raise SourceError(f"{tensor.file}: tensor {tensor.name} is {factors}, expected {expected} positive factors")
    config.rope_parameters = {**parameters, "rope_type": _ROPE_TYPE, "factors": factors}


def _rotary_dim(config: PretrainedConfig) -> int:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))


def _factored_frequencies(
    config: PretrainedConfig, device: Any = None, seq_len: int | None = None, layer_type: str | None = None
) -> tuple[torch.Tensor, float]:
    """(frequencies, scale of the attention), for transformers' table of rope types."""
    dim = _rotary_dim(config)
    exponents = torch.arange(0, dim, 2, dtype=torch.int64, device=device).float() / dim
    factors = torch.tensor(config.rope_parameters["factors"], dtype=torch.float32, device=device)
    return 1.0 / config.rope_parameters["rope_theta"] ** exponents / factors, 1.0


ROPE_INIT_FUNCTIONS[_ROPE_TYPE] = _factored_frequencies
