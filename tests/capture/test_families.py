"""Captured graphs, run by the interpreter, against HF eager at other sizes than those traced."""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from llmc.compiler.capture.capture import Captured, capture_with
from llmc.compiler.capture.export import meta_model
from llmc.compiler.sources.checkpoint import Checkpoint
from llmc.compiler.sources.model_source import ModelSource
from llmc.ir.ops.attention import Attention, Mask
from llmc.ir.ops.constant import Apply, Origin, Source, Weight
from llmc.ir.parser import parse
from llmc.ir.printer import print_graph
from llmc.ir.verify import verify

CaptureFamily = Callable[..., tuple[PreTrainedModel, Captured]]

# float32 arithmetic in another order, over a few hundred operations
TOLERANCE = 1e-5


def attentions(captured: Captured) -> list[Attention]:
    return [node.op for node in captured.graph.nodes if isinstance(node.op, Attention)]


def error(oracle: Any, model: PreTrainedModel, captured: Captured, batch: int, seq: int, shift: int = 0) -> float:
    ids, positions = oracle.example(batch, seq, shift=shift)
    ours = oracle.our_logits(captured, ids, positions)
    relative: float = oracle.relative_error(ours, oracle.hf_logits(model, ids, positions))
    return relative


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "llama-tied",
        "llama-yarn",
        "llama-linear-rope",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3",
        "phi3",
        "gpt2",
        "gptj",
        "apertus",
        "gpt_neox",
        "gpt_neox-sequential",
        "olmo",
        "olmo2",
        "cohere",
        "starcoder2",
        "granite",
        "stablelm",
        "smollm3",
        "phi",
        "glm4",
        "nemotron",
        "opt",
    ],
)
def test_a_family_computes_what_transformers_computes(family: str, capture_family: CaptureFamily, oracle: Any) -> None:
    model, captured = capture_family(family)
    for batch, seq, shift in [(3, 21, 5), (1, 1, 0), (1, 40, 0)]:
        assert error(oracle, model, captured, batch, seq, shift) < TOLERANCE
    text = print_graph(captured.graph)
    again = parse(text)
    verify(again)
    assert print_graph(again) == text


# (family, what to change in the config): HF's logits move by far more than the tolerance of the test above, so a
# capture that ignored the setting would fail it.
MUTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("llama", {"rms_norm_eps": 1e-6}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": False}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"sliding_window": 64}),
    ("gemma2", {"query_pre_attn_scalar": 16}),
    ("gemma3", {"layer_types": ["full_attention", "full_attention"]}),
    ("gemma3", {"query_pre_attn_scalar": 16}),
    ("phi3", {"sliding_window": None}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": False}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("olmo", {"clip_qkv": None}),
    ("cohere", {"logit_scale": 1.0}),
    ("granite", {"embedding_multiplier": 1.0}),
    ("granite", {"residual_multiplier": 1.0}),
    ("granite", {"logits_scaling": 1.0}),
    ("granite", {"attention_multiplier": 1.0}),
    ("smollm3", {"no_rope_layers": [1, 1]}),
    ("starcoder2", {"sliding_window": None}),
]


@pytest.mark.parametrize(("family", "change"), MUTATIONS, ids=[f"{f}-{next(iter(c))}" for f, c in MUTATIONS])
def test_each_setting_bites(family: str, change: dict[str, Any], capture_family: CaptureFamily, oracle: Any) -> None:
    model, captured = capture_family(family)
    mutant = oracle.eager_model(oracle.config_of(family, **change))
    mutant.load_state_dict(model.state_dict())
    assert error(oracle, mutant, captured, 1, 40) > 100 * TOLERANCE


def test_attention_keeps_what_the_config_says(capture_family: CaptureFamily) -> None:
    _, captured = capture_family("gemma2")
    first, second = attentions(captured)
    assert first == Attention(scale=0.5, mask=Mask(window=8), softcap=0.5)
    assert second == Attention(scale=0.5, mask=Mask(), softcap=0.5)
    _, captured = capture_family("llama")
    assert {op.scale for op in attentions(captured)} == {0.25}
    node = next(n for n in captured.graph.nodes if isinstance(n.op, Attention))
    q, k, _ = (value.tensor.shape for value in node.inputs)
    assert (q[1], k[1]) == (8, 2)  # kv heads are not repeated
    assert node.loc == "model.layers.0.self_attn"


def test_weights_are_named_and_lazy(capture_family: CaptureFamily) -> None:
    model, captured = capture_family("llama")
    weights = {n.output.name: n for n in captured.graph.nodes if isinstance(n.op, Weight)}
    assert set(model.state_dict()) <= set(weights)
    node = weights["model.layers.1.mlp.gate_proj.weight"]
    assert node.loc == "model.layers.1.mlp.gate_proj"
    assert isinstance(node.op, Weight) and isinstance(node.op.expr, Source)
    assert node.op.expr.origin is Origin.PARAMETER
    assert set(captured.buffers) == {"model.rotary_emb.inv_freq"}


def test_a_tied_head_reads_the_embedding(capture_family: CaptureFamily) -> None:
    _, captured = capture_family("llama-tied")
    tables = [n for n in captured.graph.nodes if isinstance(n.op, Weight) and n.output.tensor.shape == (97, 64)]
    assert [n.output.name for n in tables] == ["model.embed_tokens.weight"]


def test_buffers_are_what_the_model_computed(capture_family: CaptureFamily) -> None:
    for family in ("llama", "llama-yarn", "gemma3", "phi3"):
        model, captured = capture_family(family)
        for name, value in captured.buffers.items():
            np.testing.assert_array_equal(value, model.get_buffer(name).numpy())
        assert captured.buffers


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_checkpoints_are_widened(name: str, oracle: Any) -> None:
    model = oracle.eager_model(oracle.config_of("llama"))
    half = {k: v.to(getattr(torch, name)) for k, v in model.state_dict().items()}
    model.load_state_dict(half)
    captured = oracle.capture_with(oracle.config_of("llama"), lambda _: oracle.checkpoint_from(model, **half))
    weights = [n.op.expr for n in captured.graph.nodes if isinstance(n.op, Weight)]
    assert any(isinstance(expr, Apply) for expr in weights)
    assert error(oracle, model, captured, 2, 9) < TOLERANCE


def test_smollm2_from_its_gguf(smollm2: ModelSource, oracle: Any) -> None:
    """The demo model's first two layers from their Q4_1 blocks, against HF eager with the same values."""
    config = deepcopy(smollm2.config)
    config.num_hidden_layers = 2

    def first_layers(_: PreTrainedModel) -> Checkpoint:
        whole = smollm2.checkpoint(meta_model(smollm2.config))
        deeper = re.compile(r"model\.layers\.([2-9]|\d\d)\.")
        return Checkpoint({name: whole[name] for name in whole.names if not deeper.match(name)})

    captured = capture_with(config, first_layers)
    assert captured.model_class == "LlamaForCausalLM"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    state = {k: torch.from_numpy(captured.checkpoint[k].read_f32().copy()) for k in captured.checkpoint.names}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    ids, positions = oracle.example(1, 12, vocab=49152)
    ours = oracle.our_logits(captured, ids, positions)
    assert oracle.relative_error(ours, oracle.hf_logits(model.eval(), ids, positions)) < TOLERANCE
