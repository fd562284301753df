"""Every parameter from exactly one place, every checkpoint tensor used or refused by name."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from llmc.compiler.capture.buffers import evaluate_buffers
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.export import meta_model
from llmc.compiler.capture.parameters import bind
from llmc.compiler.sources.checkpoint import Checkpoint, checkpoint_of
from llmc.ir.ops.constant import Source, Weight
from llmc.ir.reference import weight


def refusal(oracle: ModuleType, family: str = "llama", **changes: torch.Tensor | None) -> str:
    model = oracle.eager_model(oracle.config_of(family))
    with pytest.raises(CaptureError) as caught:
        bind(meta_model(oracle.config_of(family)), oracle.checkpoint_from(model, **changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_leftovers_are_refused_by_name(oracle: ModuleType) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    assert f"parameter {name} of LlamaForCausalLM is not in the checkpoint" in refusal(oracle, **{name: None})
    extra = {"model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64)}
    assert "tensor model.layers.2.mlp.up_proj.weight belongs to no parameter" in refusal(oracle, **extra)
    many = {f"x.{i}": torch.zeros(1) for i in range(3)}
    assert "tensor x.0 belongs to no parameter of LlamaForCausalLM (and 2 more)" in refusal(oracle, **many)
    assert "lm_head.weight of LlamaForCausalLM is not in the checkpoint" in refusal(oracle, **{"lm_head.weight": None})


def test_wrong_shapes_and_types(oracle: ModuleType) -> None:
    name = "model.norm.weight"
    message = refusal(oracle, **{name: torch.zeros(63)})
    assert message == "parameter model.norm.weight: the checkpoint's has shape [63], the module's [64]"


def test_one_parameter_from_two_tensors(oracle: ModuleType) -> None:
    # transformers adds the base model's prefix where it is missing
    assert "model.norm.weight is filled by both" in refusal(oracle, **{"norm.weight": torch.zeros(64)})


def test_what_transformers_ignores_is_listed(oracle: ModuleType) -> None:
    model = oracle.eager_model(oracle.config_of("llama"))
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    parameters = bind(meta_model(oracle.config_of("llama")), oracle.checkpoint_from(model, **old))
    assert parameters.ignored == tuple(old)


def test_a_checkpoint_of_the_base_model_alone(oracle: ModuleType) -> None:
    """GPT-2's own files have no "transformer." prefix."""
    model = oracle.eager_model(oracle.config_of("gpt2"))
    tensors = [
        oracle.stored(name.removeprefix("transformer."), value)
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    ]
    parameters = bind(meta_model(oracle.config_of("gpt2")), checkpoint_of(tensors))
    assert set(parameters.exprs) == set(model.state_dict())
    expr = parameters.exprs["transformer.h.0.ln_1.weight"]
    assert isinstance(expr, Source) and expr.name == "h.0.ln_1.weight"


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_head_that_is_in_the_checkpoint_too(oracle: ModuleType, differs: bool) -> None:
    """Equal: one weight. Different: transformers does not tie them, whatever the config says."""
    config = oracle.config_of("llama-tied")
    model = oracle.eager_model(config)
    head = model.get_input_embeddings().weight.detach().clone()
    if differs:
        head[96] += 1
    captured = oracle.capture_with(config, lambda _: oracle.checkpoint_from(model, **{"lm_head.weight": head}))
    assert captured.untied == (("lm_head.weight",) if differs else ())
    tables = {n.output.name for n in captured.graph.nodes if isinstance(n.op, Weight)}
    assert ("lm_head.weight" in tables) is differs
    model.lm_head.weight = torch.nn.Parameter(head)
    ids, positions = oracle.example(2, 9)
    ours = oracle.our_logits(captured, ids, positions)
    assert oracle.relative_error(ours, oracle.hf_logits(model, ids, positions)) < 1e-5


def test_a_head_without_its_embedding_is_tied_the_other_way(oracle: ModuleType) -> None:
    model = oracle.eager_model(oracle.config_of("llama-tied"))
    changes: dict[str, Any] = {"model.embed_tokens.weight": None}
    changes["lm_head.weight"] = model.get_input_embeddings().weight.detach()
    parameters = bind(meta_model(oracle.config_of("llama-tied")), oracle.checkpoint_from(model, **changes))
    assert parameters.exprs["model.embed_tokens.weight"] == parameters.exprs["lm_head.weight"]


def reverted(oracle: ModuleType, model: Any) -> Checkpoint:
    """The checkpoint as the hub has it: transformers' conversions undone."""
    state = {k: v.clone() for k, v in model.state_dict().items() if k not in model.all_tied_weights_keys}
    return checkpoint_of([oracle.stored(k, v.contiguous()) for k, v in revert_weight_conversion(model, state).items()])


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "llama"])
def test_conversions_are_lazy_expressions(oracle: ModuleType, model_type: str) -> None:
    """Mixtures of experts merge a checkpoint's tensors: two layers' experts from 2 * 4 * 3 of them."""
    config = AutoConfig.for_model(
        model_type,
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts=4,
    )
    model = oracle.eager_model(config)
    checkpoint = reverted(oracle, model)
    if model_type != "llama":
        assert len(checkpoint) > len(model.state_dict())
    parameters = bind(meta_model(config), checkpoint)
    for name, value in model.state_dict().items():
        made = weight(parameters.exprs[name], lambda source: checkpoint[source.name].read_f32())
        np.testing.assert_array_equal(made, value.numpy())


def test_buffers_keep_their_place(oracle: ModuleType) -> None:
    model = meta_model(oracle.config_of("gemma3"))
    before = dict(model.named_buffers())
    values = evaluate_buffers(model, {name for name in before if name.endswith("inv_freq")})
    assert values.keys() <= before.keys()
    assert dict(model.named_buffers()).keys() == before.keys()
    assert all(buffer.device.type == "meta" for buffer in model.buffers())
