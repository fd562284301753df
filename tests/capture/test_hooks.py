"""transformers' four seams are there and take effect. When an upgrade breaks one, it breaks here."""

import importlib
from types import ModuleType

import pytest
import torch
import transformers
from transformers import AutoConfig, integrations, masking_utils
from transformers.integrations import hub_kernels
from transformers.integrations.moe import ExpertsInterface

from llmc.compiler.capture import hooks, torch_ops
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.export import export, meta_model
from llmc.compiler.capture.masks import describe
from llmc.compiler.capture.tracing import current_trace
from llmc.ir.ops.attention import Mask


def test_the_pinned_transformers() -> None:
    assert transformers.__version__.startswith("5.24."), "run tests/capture with the new one, then move the pin"


def test_the_registries_hold_the_hooks() -> None:
    name = hooks.IMPLEMENTATION
    assert transformers.AttentionInterface._global_mapping[name] is hooks.attention_hook
    assert transformers.AttentionMaskInterface._global_mapping[name] is hooks.mask_hook
    assert ExpertsInterface._global_mapping[name] is hooks.experts_hook
    seam = hub_kernels.use_kernel_func_from_hub_with_fallback
    assert hasattr(seam, "llmc_original") and integrations.use_kernel_func_from_hub_with_fallback is seam
    hooks.install()
    assert hub_kernels.use_kernel_func_from_hub_with_fallback is seam  # once, not around itself


def test_attention_and_masks_become_ops(oracle: ModuleType) -> None:
    program = export(meta_model(oracle.config_of("gemma2"))).program
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.llmc.attention.default) == 2
    assert called.count(torch.ops.llmc.mask.default) == 2  # one of each kind of layer


def test_the_ops_are_never_run() -> None:
    x = torch.zeros(1, 1, 1, 1)
    for run in (
        lambda: torch_ops.mask(x, 1, 1, 1, None, None),
        lambda: torch_ops.attention(x, x, x, x, None, 1.0, None),
    ):
        with pytest.raises(NotImplementedError, match="never run"):
            run()


TINY = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
)


def test_experts_refuse_by_module() -> None:
    config = AutoConfig.for_model("mixtral", **TINY, num_local_experts=4)
    with pytest.raises(CaptureError, match=r"model\.layers\.0\.mlp\.experts: mixtures of experts \(MixtralExperts\)"):
        export(meta_model(config))


def test_kernels_refuse_by_module() -> None:
    config = AutoConfig.for_model(
        "qwen3_next",
        **TINY,
        layer_types=["linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    with pytest.raises(CaptureError, match=r"model\.layers\.0\.linear_attn: causal_conv1d_fn .* not supported yet"):
        export(meta_model(config))


def test_kernels_are_transformers_own_outside_a_trace() -> None:
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    assert current_trace() is None
    x = torch.ones(1, 2, 5)
    out = module.causal_conv1d_fn(hidden_states=x, weight=torch.ones(2, 3), bias=None, activation=None)
    assert out.shape == x.shape


def test_transformers_mask_functions_are_described() -> None:
    causal = masking_utils.causal_mask_function
    windowed = masking_utils.sliding_window_causal_mask_function(8)
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(1))
    assert describe(causal, "m") == Mask()
    assert describe(windowed, "m") == Mask(window=8)
    assert describe(chunked, "m") == Mask(chunk=4)
    assert describe(masking_utils.and_masks(windowed, chunked), "m") == Mask(window=8, chunk=4)
    packed = masking_utils.remap_positions_for_packed_sequence(windowed, torch.zeros(1, 1))
    also = masking_utils.packed_sequence_mask_function(torch.zeros(1, 1))
    assert describe(masking_utils.and_masks(packed, also), "m") == Mask(window=8)


def test_other_mask_functions_are_refused_by_name() -> None:
    def causal_mask_function(*_: object) -> bool:  # not transformers' one
        return True

    both = masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)
    for function, name in [
        (causal_mask_function, f"{__name__}.test_other_mask_functions"),
        (both, "or_masks"),
        (masking_utils.padding_mask_function(torch.zeros(1, 1)), "padding_mask_function"),
        (masking_utils.bidirectional_mask_function, "bidirectional_mask_function"),
        (masking_utils.sliding_window_overlay(0), "sliding_window_overlay of size 0"),
        (masking_utils.sliding_window_overlay(8), "not causal"),
    ]:
        with pytest.raises(CaptureError) as caught:
            describe(function, "model.layers.3")
        assert name in str(caught.value) and "model.layers.3" in str(caught.value)
