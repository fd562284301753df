"""Engines against HF eager float32, in one prefill, in random chunks, and token by token.

The tolerance belongs to float32: some hundred operations deep, a relative error of a few 1e-7 each.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from llmc.runtime import Engine
from tests.e2e.engines import Engines
from tests.tiny_models import FAMILIES, config_of, eager_model, example, hf_logits, relative_error

TOLERANCE = 1e-4
LENGTH = 120  # beyond every window (8), three KV blocks (32), and the steps of a small engine (48)
SIZES = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "n_embd", "n_inner", "n_layer", "n_head", "n_positions", "max_position_embeddings"),
    *("ffn_dim", "word_embed_proj_dim", "pad_token_id", "bos_token_id", "eos_token_id", "head_dim"),
}


def random_chunks(length: int, largest: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    chunks: list[int] = []
    while (left := length - sum(chunks)) > 0:
        chunks.append(min(left, rng.choice([1, 2, rng.randint(1, largest)])))
    return chunks


def reference(model: PreTrainedModel, length: int) -> tuple[list[int], NDArray[Any]]:
    ids, positions = example(1, length)
    return ids[0].tolist(), hf_logits(model, ids, positions)[0]


# tests/capture runs these through the interpreter every time; the kernels that they need, others here need too
CAPTURE_SUFFICES = {
    *("llama-tied", "llama-yarn", "llama-linear-rope", "mistral", "qwen2", "gemma", "gpt_neox-sequential"),
    *("olmo", "smollm3", "nemotron"),
}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.soak if f in CAPTURE_SUFFICES else ()) for f in FAMILIES]
)
def test_a_family_computes_what_transformers_computes(family: str, engines: Engines) -> None:
    model, folder = engines.model(family)
    ids, expected = reference(model, LENGTH)
    with Engine.load(engines.engine(folder), max_rows=LENGTH, threads=2) as engine:
        whole = engine.logits(ids)
        assert relative_error(whole, expected) < TOLERANCE
        for chunks in ([1] * LENGTH, random_chunks(LENGTH, 60, seed=1), random_chunks(LENGTH, 60, seed=2)):
            assert np.array_equal(engine.logits(ids, chunks=chunks), whole)


def test_sequences_longer_than_a_step(engines: Engines) -> None:
    """With the window, the blocks and the steps (512 tokens) all passed several times."""
    model, folder = engines.model("gemma2", max_position_embeddings=1200)
    ids, expected = reference(model, 1200)
    with Engine.load(engines.engine(folder), threads=2) as engine:
        assert relative_error(engine.logits(ids), expected) < TOLERANCE


def settings() -> list[tuple[str, str]]:
    """Every setting that a tiny model has away from its default."""
    return [(family, key) for family, (_, stated) in FAMILIES.items() for key in stated if key not in SIZES]


@pytest.mark.parametrize(("family", "setting"), settings())
def test_each_setting_bites(family: str, setting: str) -> None:
    """An engine that ignored the setting would fail the comparison: HF's own logits move by far more than the
    tolerance when it is another, or the parameters are others, which a build refuses."""
    config = config_of(family)
    match getattr(config, setting):
        case bool(value):
            other: object = not value
        case int(value):
            other = value // 2  # a window, a rotary width, a scale
        case list(value):
            other = value[::-1]
        case value:
            other = getattr(type(config)(), setting)
            assert other != value
    model, mutant = eager_model(config), eager_model(config_of(family, **{setting: other}), seed=1)
    state = {name: value for name, value in model.state_dict().items() if name not in model.all_tied_weights_keys}
    own = {name: value for name, value in mutant.state_dict().items() if name not in mutant.all_tied_weights_keys}
    if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in own.items()}:
        return
    mutant.load_state_dict(state, strict=False)
    mutant.tie_weights()
    (_, expected), (_, moved) = reference(model, LENGTH), reference(mutant, LENGTH)
    assert relative_error(moved, expected) > 100 * TOLERANCE


# One per kind of setting, through real engines: weights of the family, a config in which the setting says otherwise.
MUTANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("llama", {"rms_norm_eps": 1e-6}),
    ("gemma2", {"sliding_window": 64}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("granite", {"residual_multiplier": 0.5}),
]


@pytest.mark.parametrize(("family", "change"), MUTANTS, ids=[f"{f}-{next(iter(c))}" for f, c in MUTANTS])
def test_an_engine_of_another_setting_fails_the_comparison(
    family: str, change: dict[str, Any], engines: Engines
) -> None:
    ids, expected = reference(engines.model(family)[0], LENGTH)
    with Engine.load(engines.engine(engines.mutant(family, **change)), max_rows=LENGTH, threads=2) as engine:
        assert relative_error(engine.logits(ids), expected) > 100 * TOLERANCE


def test_the_comparison_sees_one_wrong_position(engines: Engines) -> None:
    """relative_error is the worst position's, and NaN is no small error."""
    model, _ = engines.model("llama")
    _, expected = reference(model, LENGTH)
    wrong = expected.copy()
    wrong[57] *= 1.001
    assert relative_error(wrong, expected) == pytest.approx(1e-3, rel=0.01)
    wrong[57] = np.nan
    assert not relative_error(wrong, expected) < TOLERANCE
    assert torch.isfinite(torch.from_numpy(expected)).all()
