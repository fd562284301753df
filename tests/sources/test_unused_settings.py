"""Settings of a config.json that change nothing: found by what transformers does with them, not from a list."""

from pathlib import Path
from typing import Any

import pytest

from llmc.compiler.sources.model_config import ConfigFile

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
GEMMA3 = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
PHI3 = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 97}
PHI3 |= {"max_position_embeddings": 4096, "original_max_position_embeddings": 1024, "pad_token_id": 0}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 97}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
DEFAULT, LINEAR = {"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def unused(raw: dict[str, Any]) -> list[str]:
    return [str(setting) for setting in ConfigFile(Path("config.json"), raw).unused]


@pytest.mark.parametrize(
    "raw",
    [
        LLAMA,
        {**LLAMA, "rope_theta": 10000.0, "rope_scaling": LINEAR, "temperature": 0.5, "rope_parameters": None},
        {**LLAMA, "partial_rotary_factor": 1.0},
        {**GEMMA3, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0},  # its defaults
        {**PHI3, "rope_scaling": LONGROPE, "partial_rotary_factor": 0.5},
        {**GPT2, "scale_attn_by_inverse_layer_idx": True},
    ],
)
def test_what_transformers_translates_is_used(raw: dict[str, Any]) -> None:
    assert unused(raw) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({**LLAMA, "foo_scale": 3.0, "auto_map": {"AutoModel": "x.Y"}}, ["auto_map", "foo_scale"]),
        (
            {**LLAMA, "rope_theta": 5e5, "rope_parameters": {**DEFAULT, "rope_theta": 1e4}},
            ["rope_theta (rope_parameters.rope_theta counts)"],
        ),
        (
            {**LLAMA, "rope_scaling": LINEAR, "rope_parameters": {**DEFAULT, "rope_theta": 5e5}},
            ["rope_parameters (rope_scaling counts)"],
        ),
        ({**LLAMA, "dtype": "float16"}, ["torch_dtype (dtype counts)"]),
        ({**GPT2, "hidden_size": 32}, ["n_embd (hidden_size counts)"]),
        ({**QWEN2, "sliding_window": 64}, ["sliding_window"]),
        (
            {**QWEN2, "sliding_window": 64, "use_sliding_window": False},
            ["sliding_window (use_sliding_window counts)"],
        ),
        ({"model_type": "gemma3", "text_config": {**GEMMA3, "foo": 1}}, ["text_config.foo"]),
        ({**GEMMA3, "layer_types": ["full_attention"] * 2, "sliding_window_pattern": 2}, ["sliding_window_pattern"]),
    ],
)
def test_what_changes_nothing_is_named(raw: dict[str, Any], expected: list[str]) -> None:
    assert unused(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        {**LLAMA, "rope_theta": 5e5, "rope_parameters": {**LINEAR, "rope_theta": 5e5}},
        {**LLAMA, "rope_scaling": {**LINEAR, "rope_theta": 5e5}, "rope_parameters": {**LINEAR, "rope_theta": 5e5}},
        {**GPT2, "hidden_size": 64},
    ],
)
def test_two_that_say_the_same_are_both_used(raw: dict[str, Any]) -> None:
    assert unused(raw) == []


def test_only_contradictions_are_told_at_a_build() -> None:
    raw = {**QWEN2, "foo": 1, "rope_theta": 5e5, "rope_parameters": {**DEFAULT, "rope_theta": 1e4}}
    raw |= {"sliding_window": 64, "use_sliding_window": False}
    assert list(ConfigFile(Path("m/config.json"), raw).contradictions()) == [
        "m/config.json: rope_theta is 500000.0, but rope_parameters.rope_theta is 10000.0, "
        "which is what transformers uses"
    ]
