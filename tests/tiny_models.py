"""Tiny random models, one per thing that modeling code does differently, with settings that bite; HF runs them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_COMMON = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2 = {
    "vocab_size": 97,
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 2,
    "n_head": 8,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _gqa(**settings: Any) -> dict[str, Any]:
    return {**_COMMON, **settings}


def _mha(**settings: Any) -> dict[str, Any]:
    return {k: v for k, v in _gqa(**settings).items() if k != "num_key_value_heads"}


# One entry per thing that modeling code does differently; each setting is away from its default.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "llama",
        _gqa(head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE, rms_norm_eps=0.05),
    ),
    "llama-tied": ("llama", _gqa(tie_word_embeddings=True)),
    "llama-yarn": (
        "llama",
        _gqa(
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        ),
    ),
    "llama-linear-rope": (
        "llama",
        _gqa(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    ),
    "mistral": ("mistral", _gqa(sliding_window=8)),
    "qwen2": ("qwen2", _gqa(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "qwen3": ("qwen3", _gqa(head_dim=16, attention_bias=True)),
    "gemma": ("gemma", _gqa(head_dim=16)),
    "gemma2": (
        "gemma2",
        _gqa(
            head_dim=16,
            sliding_window=8,
            attn_logit_softcapping=0.5,
            final_logit_softcapping=0.5,
            query_pre_attn_scalar=4,
        ),
    ),
    "gemma3": (
        "gemma3_text",
        _gqa(
            head_dim=16,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=4,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
    ),
    "phi3": (
        "phi3",
        _gqa(
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            sliding_window=8,
        ),
    ),
    "gpt2": ("gpt2", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gptj": ("gptj", {**_GPT2, "n_head": 1, "rotary_dim": 4}),  # one wide head: the default rotary_dim is 64
    "apertus": ("apertus", _gqa()),
    "gpt_neox": (
        "gpt_neox",
        _mha(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ),
    "gpt_neox-sequential": ("gpt_neox", _mha(use_parallel_residual=False)),
    "olmo": ("olmo", _gqa(clip_qkv=0.3)),
    "olmo2": ("olmo2", _gqa()),
    "cohere": ("cohere", _gqa(logit_scale=0.3, use_qk_norm=True)),
    "starcoder2": ("starcoder2", _gqa(sliding_window=8, use_bias=True)),
    "granite": (
        "granite",
        _gqa(embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=5.0, attention_multiplier=0.3),
    ),
    "granite_swa": (
        "granite_swa",
        _gqa(
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention"],
            layer_rope_theta=[1000.0, 0.0],
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            logits_scaling=5.0,
            attention_multiplier=0.3,
        ),
    ),
    "stablelm": ("stablelm", _gqa(use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True)),
    "smollm3": ("smollm3", _gqa(no_rope_layers=[1, 0])),
    "phi": ("phi", _gqa(qk_layernorm=True)),
    "glm4": ("glm4", _gqa(head_dim=16, attention_bias=True)),
    "nemotron": ("nemotron", _gqa(head_dim=16)),
    "opt": (
        "opt",
        {
            "vocab_size": 97,
            "hidden_size": 64,
            "ffn_dim": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "max_position_embeddings": 128,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": False,
        },
    ),
}


def config_of(family: str, **overrides: Any) -> PretrainedConfig:
    model_type, settings = FAMILIES[family]
    return AutoConfig.for_model(model_type, **{**settings, **overrides})


def eager_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model with every parameter far from its initial value, so that none can be left out unnoticed."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif "bias" in name:
                parameter.copy_(0.2 * noise)
            else:
                parameter.add_(0.3 * noise)
    return model


def hf_logits(model: PreTrainedModel, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[Any]:
    with torch.no_grad():
        out = model(input_ids=torch.from_numpy(ids), position_ids=torch.from_numpy(positions), use_cache=False)
    logits: NDArray[Any] = out.logits.numpy()
    return logits


def example(batch: int, seq: int, vocab: int = 97, shift: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = np.random.default_rng(batch * 1000 + seq).integers(0, vocab, (batch, seq))
    return ids, np.broadcast_to(np.arange(seq) + shift, (batch, seq)).copy()


def relative_error(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """The largest of any position's ‖a - b‖ / ‖b‖."""
    return float((np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)).max())
